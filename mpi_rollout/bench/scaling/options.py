"""The command line of `scaling`."""

import argparse
from typing import Any

from mpi_rollout.bench.commands import add_sim
from mpi_rollout.bench.scaling.study import RUN_OPTIONS, Study
from mpi_rollout.errors import UsageError
from mpi_rollout.options import add_job_options, add_run_options, path, ranks_list


def add_scaling(commands: Any) -> None:
    """Add `scaling strong` and `weak`, with their own options and those of a run; `gather`, and `sim`."""
    scaling = commands.add_parser("scaling", help="measure how much faster more ranks are; starts mpirun by itself")
    kinds = scaling.add_subparsers(required=True, metavar="strong|weak|gather|sim")
    for kind, size in (("strong", "--num-envs"), ("weak", "--envs-per-rank")):
        _add_kind(kinds, kind, size)
    _add_gather(kinds)
    add_sim(kinds)


def _add_kind(kinds: Any, kind: str, size: str) -> None:
    of = "over all ranks, the same on any number of ranks" if kind == "strong" else "on each rank"
    parser = kinds.add_parser(kind, help=f"{size}: envs {of}")
    parser.add_argument("--ranks", type=ranks_list, default="1,2,4,8", help="numbers of ranks; the base case is "
                        "measured on 1, which is always among them (default: 1,2,4,8)")  # fmt: skip
    add_job_options(parser, "number of ranks", 5, 600.0, "print the commands of what is left, start none")
    parser.add_argument(size, dest="size", type=int, default=64, metavar="N", help=f"envs {of} (default: 64)")
    parser.add_argument("--out", type=path, default=f"results/{kind}.h5", metavar="FILE", help="file of the study; if "
                        f"it was interrupted there, it is continued (default: results/{kind}.h5)")  # fmt: skip
    parser.add_argument("--only", type=int, metavar="R", help="do only the jobs of R ranks, for example in a batch job "
                        "of their own; they go to FILE.parts; `scaling gather FILE` puts them together")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="with --dry-run: print what is left as one line of JSON")
    parser.add_argument("--redo-failed", action="store_true", help="do failed jobs again; by default they stay failed")
    add_run_options(parser, RUN_OPTIONS)
    parser.set_defaults(command=scaling_command, kind=kind)


def _add_gather(kinds: Any) -> None:
    parser = kinds.add_parser(
        "gather", help="put together the parts of a study that was done with --only, and show the results"
    )
    parser.add_argument("out", metavar="FILE", help="file of the study; its parts are in FILE.parts")
    parser.set_defaults(command=gather_command)


def scaling_command(options: argparse.Namespace) -> int:
    """Measure."""
    from mpi_rollout.bench.scaling.runner import measure, show_plan  # h5py is not for --help.

    run = {name: getattr(options, name) for name in RUN_OPTIONS}
    names = ("kind", "ranks", "size", "repeats", "order_seed")
    study = Study(*(getattr(options, name) for name in names), run, options.launcher.strip())
    how = (study, options.out, options.timeout_s, options.only, options.redo_failed)
    if options.dry_run:
        return show_plan(*how, options.json)
    if options.json:
        raise UsageError("--json is for --dry-run; the results are in the file of the study")
    return measure(*how)


def gather_command(options: argparse.Namespace) -> int:
    """Put together."""
    from mpi_rollout.bench.scaling.parts import gather

    return gather(options.out)
