"""The command `compare`: its options, and what they mean together."""

import argparse
from typing import Any

from mpi_rollout.core.host import num_usable_cores
from mpi_rollout.errors import UsageError
from mpi_rollout.options import path

ENVS = "CartPole-v1,Acrobot-v1"
SYSTEMS = (
    "bare, bare-all, mpi-R, mpi-groups, mpi-ready, mpi-native-R, mpi-record-R (R of --ranks), sync, async, native, "
    "pool, sb3-dummy, sb3-subproc, envpool, envpool-async, minari"
)


def add_compare(commands: Any) -> None:
    """Add the command `compare`."""
    parser = commands.add_parser(
        "compare", help="measure this program beside the vector envs that people use; starts mpirun by itself",
    )  # fmt: skip
    for name, kind, default, metavar, told in (
        ("--env", str, ENVS, "IDS", "env ids as gymnasium.make takes them, with commas"),
        ("--num-envs", str, "1,2,4,8,16,64,256", "NS", "numbers of envs, with commas"),
        ("--systems", str, "", "NAMES", f"systems to measure, with commas, of {SYSTEMS} (default: all)"),
        ("--ranks", str, "", "RS", "numbers of ranks of this program, with commas (default: 1 and all cores)"),
        ("--repeats", int, 5, "N", "number of turns of each system at each point"),
        ("--window-s", float, 0.25, "S", "length of one turn in seconds"),
        ("--order-seed", int, 0, "SEED", "seed of the order of the turns"),
        ("--timeout-s", float, 120.0, "S", "seconds of a set-up or turn; a system that takes longer has failed"),
        ("--launcher", str, "", "COMMAND", "command that starts the ranks, up to -n (default: mpirun)"),
        ("--out", path, "results/compare.h5", "FILE", "file of the comparison; an interrupted one is continued"),
    ):  # fmt: skip
        told += f" (default: {default})" * (default != "")
        parser.add_argument(name, type=kind, default=default, metavar=metavar, help=told)
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured and how long it takes")
    parser.set_defaults(command=compare_command)


def compare_command(options: argparse.Namespace) -> int:
    """Do it."""
    from mpi_rollout.bench.compare.comparison import Comparison, names_list, numbers_list
    from mpi_rollout.bench.compare.runner import compare
    from mpi_rollout.bench.compare.systems import systems_of

    num_cores = num_usable_cores()
    ranks = numbers_list("--ranks")(options.ranks or f"1,{num_cores}")
    envs = names_list(options.env)
    if not envs:
        raise UsageError(f"--env must be env ids such as {ENVS}, got {options.env!r}")
    systems = names_list(options.systems)
    if options.systems and not systems:
        raise UsageError(f"--systems must be names such as mpi-1,sync, got {options.systems!r}; leave it out for all")
    comparison = Comparison(
        envs=envs,
        num_envs=numbers_list("--num-envs")(options.num_envs),
        systems=systems or tuple(systems_of(ranks, num_cores)),
        ranks=ranks,
        num_cores=num_cores,
        repeats=options.repeats,
        window_s=options.window_s,
        order_seed=options.order_seed,
        launcher=options.launcher.strip(),
    )
    return compare(comparison, options.out, options.timeout_s, options.dry_run)
