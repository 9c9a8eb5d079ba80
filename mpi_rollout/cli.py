"""The command line: the commands, and how each begins and ends."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial

from mpi_rollout import __version__
from mpi_rollout.commands import file_commands
from mpi_rollout.config import ENV_OPTIONS, RolloutConfig, check_used
from mpi_rollout.core.option_values import check_seconds
from mpi_rollout.errors import Interrupted, Option, RolloutError, SignalInterrupt, UsageError, as_flag
from mpi_rollout.exchange.job_end import with_stacks
from mpi_rollout.exchange.world import refuser
from mpi_rollout.options import GROUPS, RunOptions, SharedOptions
from mpi_rollout.parser import Commands, Parser, add_option, add_run_options, path, with_command
from mpi_rollout.process.console import hold, say, settle, show, stdout_apart, without_stdin
from mpi_rollout.process.interrupts import raise_on_signals
from mpi_rollout.process.paths import current, started_in
from mpi_rollout.process.start import is_heeding
from mpi_rollout.ranks.agreement import share_refusal
from mpi_rollout.storage.ownership import remove_empty_folders

DEFAULT = "run"  # The command of a command line that names none.


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    hold()
    arguments, options = with_command(sys.argv[1:] if argv is None else argv, DEFAULT), None
    try:
        options = make_parser(arguments[0]).read(arguments)
        with (
            started_in(current()),
            without_stdin(),
            stdout_apart() if getattr(options, "json", False) else nullcontext(),
        ):
            if is_heeding() and options.command is not run_command:  # A run does it when its ranks have come.
                raise_on_signals()
            return options.command(options)
    except RolloutError as error:
        if isinstance(error, UsageError):
            error = share_refusal(error)
        place = refuser()
        if place is not None:
            stack = error.stack if getattr(options, "command", None) is run_command else ""
            say(f"{stack}mpi_rollout: {place}{error.shown(as_flag)}\n")
        return error.exit_code
    except SignalInterrupt as error:
        say(f"mpi_rollout: stopped by {error}\n")
        return Interrupted.exit_code
    except BrokenPipeError:  # The reader of our output has gone, as `head` does.
        return 0
    finally:
        remove_empty_folders()
        settle()


def make_parser(command: str = "") -> Parser:
    """Return the parser of a command, or where there is no such command that of all.

    Other commands need other modules, and imports are the start-up time of a job with many ranks.
    """
    parser = Parser(
        prog="python -m mpi_rollout",
        description="Collect reinforcement-learning experience over MPI ranks.",
        epilog="All options: python -m mpi_rollout run --help.  Example: "
        "mpirun -n 4 python -m mpi_rollout --env CartPole-v1 --out cartpole.h5",
    )
    parser.add_argument("--version", action="version", version=f"mpi_rollout {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, add in ADDERS.items():
        if command == name or command not in ADDERS:
            add(commands)
    return parser


def _add_run(commands: Commands) -> None:
    parser = commands.add_parser("run", help="collect experience (the default command)")
    options = fields(RunOptions)[len(fields(SharedOptions)) :] + fields(SharedOptions)
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for option in options:
            if option.metadata["group"] == title:
                add_option(group, option)
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="check options, output, policy and one env, in one process without MPI, and run nothing; --expect-ranks "
        "tells for how many ranks",
    )
    parser.set_defaults(command=run_command)


def _add_study(name: str, commands: Commands) -> None:
    from mpi_rollout.studies import commands as studies

    {"scaling": studies.add_scaling, "compare": studies.add_compare, "tune": studies.add_tune}[name](commands)


def _add_plot(commands: Commands) -> None:
    plot = commands.add_parser("plot", help="draw studies: PNG and SVG beside each file (needs the extra `studies`)")
    plot.add_argument("files", metavar="FILE", nargs="+", type=path)
    plot.set_defaults(command=_plot_command)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser("doctor", help="check this machine before a run; start it as you start runs")
    doctor.add_argument(
        "--out",
        metavar="FOLDER",
        type=path,
        help="folder of the output (default: results if it is there, else the current folder)",
    )
    doctor.add_argument("--json", action="store_true", help="print it as one line of JSON")
    doctor.add_argument(
        "--timeout-s", type=float, default=20.0, metavar="S", help="how long a check may take (default: 20)"
    )
    text = "an env whose resets and steps are timed, and how many of it a run has; see `run --help`"
    add_run_options(doctor.add_argument_group(text), (*ENV_OPTIONS, "num_envs", "ranks_per_env", "root_envs"))
    doctor.set_defaults(command=_doctor_command)


def run_command(options: argparse.Namespace) -> int:
    """Run, or only check that a run would start."""
    from mpi_rollout.collect.run import rehearse, run  # Reads files no more than it must: workers import no h5py.

    config = RolloutConfig(**{field.name: getattr(options, field.name) for field in fields(RolloutConfig)})
    check_used(config, options.typed)
    if options.dry_run:
        show([rehearse(config, config.expect_ranks or 1)])
        return 0
    return with_stacks(lambda: run(config))


def _plot_command(options: argparse.Namespace) -> int:
    from mpi_rollout.studies.jobs import check_scipy
    from mpi_rollout.studies.picture import plot_study

    check_scipy()
    for file in options.files:
        show(plot_study(file))
    return 0


def _doctor_command(options: argparse.Namespace) -> int:
    from mpi_rollout.doctor import doctor

    check_seconds(Option("timeout_s"), options.timeout_s)
    env = {name: getattr(options, name) for name in ENV_OPTIONS}
    own = {name: getattr(options, name) for name in ("num_envs", "ranks_per_env", "root_envs")}
    own["vectorization_mode"] = "sync"
    config = RolloutConfig(**env, **own) if any(env.values()) else None
    return doctor(options.out, config, options.json, options.timeout_s)


ADDERS: dict[str, Callable[[Commands], None]] = {
    "run": _add_run,
    "inspect": file_commands.add_inspect,
    "list": file_commands.add_list,
    "verify": file_commands.add_verify,
    "recover": file_commands.add_recover,
    "export": file_commands.add_export,
    "render": file_commands.add_render,
    "scaling": partial(_add_study, "scaling"),
    "compare": partial(_add_study, "compare"),
    "tune": partial(_add_study, "tune"),
    "plot": _add_plot,
    "doctor": _add_doctor,
}
