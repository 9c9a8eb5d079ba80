"""The command line of `tune`."""

import argparse
from typing import Any

from mpi_rollout.options import add_job_options, add_run_options, ranks_list

RUN_OPTIONS = (
    "env", "env_factory", "env_kwargs", "num_envs", "seed", "policy", "trajectories", "wait", "actions",
    "strict_dtypes",
)  # fmt: skip


def add_tune(commands: Any) -> None:
    """Add the command `tune`."""
    parser = commands.add_parser(
        "tune", help="find the ranks and the mode that suit an env on this machine; starts mpirun by itself",
    )  # fmt: skip
    parser.add_argument("--ranks", type=ranks_list, default=(), help="numbers of ranks to try, at most as many as "
                        "envs (default: 1, 2, 4, ... and all cores of this machine)")  # fmt: skip
    parser.add_argument("--trial-s", type=float, default=3.0, help="seconds of steps in a job (default: 3)")
    add_job_options(parser, "candidate", 5, 300.0, "measure the env by itself, print the jobs, start none")
    add_run_options(parser, RUN_OPTIONS)
    parser.set_defaults(command=tune_command)


def tune_command(options: argparse.Namespace) -> int:
    """Tune."""
    from mpi_rollout.bench.tune.runner import Tuning, tune

    run = {name: getattr(options, name) for name in RUN_OPTIONS}
    own = {name: getattr(options, name) for name in ("ranks", "repeats", "order_seed", "trial_s", "timeout_s")}
    return tune(Tuning(run, **own, launcher=options.launcher.strip()), options.dry_run)
