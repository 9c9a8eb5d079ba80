"""The command line of `tune`."""

import argparse
from dataclasses import fields
from typing import Any

from mpi_rollout.config import RolloutConfig
from mpi_rollout.options import add_option, ranks_list

RUN_OPTIONS = ("env", "env_factory", "env_kwargs", "num_envs", "seed", "policy", "trajectories", "wait")


def add_tune(commands: Any) -> None:
    """Add the command `tune`."""
    parser = commands.add_parser(
        "tune", help="find the ranks and the mode that suit an env on this machine; starts mpirun by itself",
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--ranks", type=ranks_list, default=(), help="numbers of ranks to try, at most as many as "
                        "envs (default: 1, 2, 4, ... and all cores of this machine)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, help="jobs of each candidate (default: 5)")
    parser.add_argument("--order-seed", type=int, default=0, help="of the random order of the jobs (default: 0)")
    parser.add_argument("--trial-s", type=float, default=3.0, help="seconds of steps in a job (default: 3)")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="end a job, or the env, that takes longer "
                        "(default: 300)")  # fmt: skip
    parser.add_argument("--launcher", default="", help="what starts the ranks, up to -n (default: mpirun)")
    parser.add_argument("--dry-run", action="store_true", help="measure the env by itself, print the jobs, start none")
    for each in fields(RolloutConfig):
        if each.name in RUN_OPTIONS:
            add_option(parser, each)
    parser.set_defaults(command=tune_command)


def tune_command(options: argparse.Namespace) -> int:
    """Tune."""
    from mpi_rollout.tune.runner import Tuning, tune

    run = {name: getattr(options, name) for name in RUN_OPTIONS}
    own = {name: getattr(options, name) for name in ("ranks", "repeats", "order_seed", "trial_s", "timeout_s")}
    return tune(Tuning(run, **own, launcher=options.launcher.strip()), options.dry_run)
