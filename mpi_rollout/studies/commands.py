"""The command lines of `scaling`, `tune` and `compare`.  A command loads what it needs when it is called."""

import argparse
from dataclasses import fields

from mpi_rollout.config import ENV_OPTIONS
from mpi_rollout.errors import UsageError
from mpi_rollout.options import AUTO
from mpi_rollout.parser import MOST, Commands, add_option, add_run_options, path
from mpi_rollout.studies.jobs import JobOptions

# The options of a run that a study takes from its user; the others are the study's own affair.
_POLICY = "policy", "policy_kwargs", "policy_device"
_BOTH = (*ENV_OPTIONS, "seed", "episode_seeds", *_POLICY, "trajectories", "wait", "actions", "env_checks")
SCALING_OPTIONS = (
    *_BOTH,
    "num_steps",
    "vectorization_mode",
    "batch_size",
    "num_groups",
    "limit_s",
    "policy_on",
    "ranks_per_env",
)
TUNE_OPTIONS = (*_BOTH, "num_envs")


def _add_job_options(parser: argparse.ArgumentParser, timeout_s: float) -> None:
    for field in fields(JobOptions):
        add_option(parser, field)
    parser.set_defaults(timeout_s=timeout_s)


def numbers(name: str, what: str, example: str, text: str) -> tuple[int, ...]:
    """Read a list of whole numbers from 1 to `MOST`; return them in ascending order.  UsageError if it is none."""
    try:
        values = {int(part) for part in text.split(",")}
    except ValueError:
        values = {0}
    if min(values) < 1:
        raise UsageError(f"{name} must be {what} such as {example}, got {text!r}")
    if max(values) > MOST:
        raise UsageError(f"{name} must be {what} up to {MOST}, got {max(values)}")
    return tuple(sorted(values))


def ranks_list(text: str) -> tuple[int, ...]:
    """Read numbers of ranks."""
    return numbers("--ranks", "numbers of ranks", "1,2,4,8", text)


def lengths_list(text: str) -> tuple[str, ...]:
    """Read lengths of fragments, numbers or auto."""
    words = text.split(",")
    counted = ",".join(word for word in words if word != AUTO)
    steps = () if words == [AUTO] else numbers("--fragment-length", "numbers of steps, or auto,", "1,16,auto", counted)
    return (*map(str, steps), *[AUTO] * (AUTO in words))


def add_scaling(commands: Commands) -> None:
    """Add `scaling strong`, `weak` and `gather`."""
    text = "measure how much faster more ranks are; starts mpirun by itself"
    more = "For more ranks than you have: python benchmarks/model, in a clone."
    scaling = commands.add_parser("scaling", help=text, epilog=more)
    kinds = scaling.add_subparsers(required=True, metavar="strong|weak|gather")
    _add_kind(kinds, "strong", "--num-envs", "over all ranks, the same on any number of ranks")
    _add_kind(kinds, "weak", "--envs-per-rank", "on each rank")
    gather = kinds.add_parser("gather", help="put together a study that was done with --only; show the results")
    gather.add_argument("out", metavar="FILE", type=path, help="file of the study; its parts are in FILE.parts")
    gather.set_defaults(command=_gather_command)


def _add_kind(kinds: Commands, kind: str, size: str, where: str) -> None:
    parser = kinds.add_parser(kind, help=f"{size}: envs {where}")
    add = parser.add_argument
    ranks = (
        "numbers of ranks, each a multiple of --ranks-per-env; the base case is measured on as many ranks as make one "
        "env, which are always among them (default: 1, 2, 4, 8 times as many)"
    )
    add("--ranks", type=ranks_list, default=(), help=ranks)
    _add_job_options(parser, 600.0)
    add(size, dest="size", type=int, default=64, metavar="N", help=f"envs {where} (default: 64)")
    lengths = "steps between two exchanges; a curve for each (default: auto, as for `run`)"
    add("--fragment-length", type=lengths_list, default=AUTO, metavar="L,...", help=lengths)
    out = f"file of the study; an interrupted study is continued (default: results/{kind}.json)"
    add("--out", type=path, default=f"results/{kind}.json", metavar="FILE", help=out)
    only = (
        "do only the jobs of R ranks, for example in a batch job of their own; they go to FILE.parts; "
        "`scaling gather FILE` puts them together"
    )
    add("--only", type=int, metavar="R", help=only)
    add("--json", action="store_true", help="with --dry-run: print what is left as one line of JSON")
    add("--redo-failed", action="store_true", help="do failed jobs again; by default they stay failed")
    add_run_options(parser, SCALING_OPTIONS)
    parser.set_defaults(command=_scaling_command, kind=kind)


def _scaling_command(options: argparse.Namespace) -> int:
    from mpi_rollout.studies.scaling import Measurement, measure, show_plan
    from mpi_rollout.studies.study import Study, scaling_points

    run = {name: getattr(options, name) for name in SCALING_OPTIONS}
    base = options.ranks_per_env
    ranks = sorted({base, *(options.ranks or (base * number for number in (1, 2, 4, 8)))})
    points = scaling_points(ranks, options.fragment_length)
    study = Study(options.kind, points, options.size, run, JobOptions.read(options))
    measurement = Measurement(study, options.out, options.only, options.redo_failed)
    if options.dry_run:
        return show_plan(measurement, options.json)
    if options.json:
        raise UsageError("--json is for --dry-run; the results are in the file of the study")
    return measure(measurement)


def _gather_command(options: argparse.Namespace) -> int:
    from mpi_rollout.studies.scaling import gather

    return gather(options.out)


def add_tune(commands: Commands) -> None:
    """Add the command `tune`."""
    text = "find the ranks and the mode that suit an env on this machine; starts mpirun by itself"
    parser = commands.add_parser("tune", help=text)
    text = "numbers of ranks to try, at most as many as envs (default: 1, 2, 4, ... and all cores of this machine)"
    parser.add_argument("--ranks", type=ranks_list, default=(), help=text)
    parser.add_argument("--trial-s", type=float, default=3.0, help="seconds of steps in a job (default: 3)")
    _add_job_options(parser, 300.0)
    add_run_options(parser, TUNE_OPTIONS)
    parser.set_defaults(command=_tune_command)


def _tune_command(options: argparse.Namespace) -> int:
    from mpi_rollout.studies.tune import tune

    run = {name: getattr(options, name) for name in TUNE_OPTIONS}
    ranks = tuple(sorted({1, *options.ranks})) if options.ranks else ()
    return tune(run, ranks, options.trial_s, JobOptions.read(options))


def add_compare(commands: Commands) -> None:
    """Add the command `compare`."""
    from mpi_rollout.studies.compare import NAMES, OTHERS

    text = "find the fastest vector env for an env on this machine; starts mpirun by itself"
    parser = commands.add_parser("compare", help=text, epilog=f"For other programs: {OTHERS}.")
    add, text = parser.add_argument, "number of ranks of this program (default: one for each core that may be used)"
    add("--systems", default="", metavar="NAMES", help=f"systems to measure, with commas, of {NAMES} (default: all)")
    add("--ranks", type=int, metavar="R", help=text)
    add("--window-s", type=float, default=1.0, metavar="S", help="length of one turn in seconds (default: 1)")
    add("--json", action="store_true", help="print machine and all samples as one line of JSON")
    _add_job_options(parser, 120.0)
    add_run_options(parser, (*ENV_OPTIONS, "num_envs"))
    parser.set_defaults(command=_compare_command)


def _compare_command(options: argparse.Namespace) -> int:
    from mpi_rollout.studies.compare import compare

    env = {name: getattr(options, name) for name in ENV_OPTIONS}
    settings = options.num_envs, options.ranks, options.systems, options.window_s, options.json
    return compare(env, *settings, JobOptions.read(options))
