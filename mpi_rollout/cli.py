"""The command line: derived from the configuration, one function per command."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial

from mpi_rollout import __version__
from mpi_rollout.config import ENV_OPTIONS, RolloutConfig, flag
from mpi_rollout.errors import Interrupted, RolloutError, SignalInterrupt, UsageError, as_flag
from mpi_rollout.exchange.job_end import with_stacks
from mpi_rollout.exchange.world import claimed_rank, claimed_size
from mpi_rollout.options import Commands, Parser, add_run_options, check_seconds, check_used, path, with_command
from mpi_rollout.process.console import fitted, hold, say, settle, show, stdout_apart, without_stdin
from mpi_rollout.process.interrupts import raise_on_signals
from mpi_rollout.process.place import current, started_in
from mpi_rollout.process.start import is_heeding
from mpi_rollout.ranks.agreement import share_refusal
from mpi_rollout.shared_options import SharedOptions
from mpi_rollout.storage.ownership import remove_empty_folders

DEFAULT = "run"  # The command of a command line that names none.


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    hold()
    arguments, options = list(sys.argv[1:] if argv is None else argv), None
    try:
        options = make_parser(with_command(arguments, DEFAULT)[0]).read(arguments, DEFAULT)
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
        if claimed_size()[0] > 1:  # srun ends the other ranks when the first has left: they too leave with this code.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if claimed_rank() == 0:
            stack = error.stack if getattr(options, "command", None) is run_command else ""
            say(f"{stack}mpi_rollout: {error.shown(as_flag)}\n")
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


def add_run(commands: Commands) -> None:
    """Add the command `run`."""
    parser = commands.add_parser("run", help="collect experience (the default command)")
    shared = [field.name for field in fields(SharedOptions)]
    add_run_options(parser, [field.name for field in fields(RolloutConfig) if field.name not in shared])
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check options, output, policy and one env, in one process without MPI, and run nothing; --expect-ranks "
        "tells for how many ranks",
    )
    add_run_options(parser.add_argument_group("options that mpi_rollout.connect has as well"), shared)
    parser.set_defaults(command=run_command)


def add_inspect(commands: Commands) -> None:
    """Add the command `inspect`."""
    parser = commands.add_parser("inspect", help="show what is in a file, complete or not")
    parser.add_argument("files", metavar="FILE", nargs="+", type=path)
    parser.add_argument("--json", action="store_true", help="print it as one line of JSON for each file")
    parser.add_argument(
        "--plot",
        nargs="?",
        const=True,
        metavar="PNG",
        type=path,
        help="draw returns, lengths, throughput and each rank's time by phase: beside each FILE, as FILE.png, or one "
        "FILE into PNG (needs the extra `plots`)",
    )
    parser.add_argument("--out", metavar="FOLDER", type=path, help="folder of the pictures of --plot")
    parser.set_defaults(command=inspect_command)


def add_list(commands: Commands) -> None:
    """Add the command `list`."""
    parser = commands.add_parser("list", help="list the runs of a folder: how far each one is, and why it ended")
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=path,
        help="default: results if it is there, else the current folder",
    )
    parser.add_argument("--json", action="store_true", help="print them as one line of JSON")
    parser.set_defaults(command=list_command)


def add_study(name: str, commands: Commands) -> None:
    """Add one of the commands that start jobs by themselves."""
    from mpi_rollout.studies import commands as studies

    {"scaling": studies.add_scaling, "compare": studies.add_compare, "tune": studies.add_tune}[name](commands)


def add_plot(commands: Commands) -> None:
    """Add the command `plot`."""
    plot = commands.add_parser("plot", help="draw studies: PNG and SVG beside each file (needs the extra `studies`)")
    plot.add_argument("files", metavar="FILE", nargs="+", type=path)
    plot.set_defaults(command=plot_command)


def add_doctor(commands: Commands) -> None:
    """Add the command `doctor`."""
    doctor = commands.add_parser("doctor", help="check this machine before a run; start it as you start runs")
    doctor.add_argument(
        "--out",
        metavar="FOLDER",
        type=path,
        help="folder of the output (default: results if it is there, else the current folder)",
    )
    doctor.add_argument("--env", metavar="ID", help="make this env and time its steps")
    doctor.add_argument("--json", action="store_true", help="print it as one line of JSON")
    doctor.add_argument(
        "--timeout-s", type=float, default=20.0, metavar="S", help="how long MPI or the folder may take (default: 20)"
    )
    doctor.set_defaults(command=doctor_command)


def add_verify(commands: Commands) -> None:
    """Add the command `verify`."""
    verify = commands.add_parser("verify", help="check all of a file, complete or not")
    verify.add_argument("files", metavar="FILE", nargs="+", type=path)
    verify.add_argument(
        "--replay",
        type=int,
        default=0,
        metavar="N",
        help="step N episodes again from their seeds and actions, and compare every byte",
    )
    verify.add_argument(
        "--replay-seed", type=int, default=0, metavar="SEED", help="seed of the choice of these episodes (default: 0)"
    )
    verify.add_argument("--json", action="store_true", help="print the result as one line of JSON for each file")
    envs = verify.add_argument_group(
        "envs of a replay",
        "A replay runs the code of the envs.  Unless they are Gymnasium's own, give the options of the run again: "
        "the code is then your choice, not the file's.",
    )
    add_run_options(envs, ENV_OPTIONS)
    verify.add_argument(
        "--trust",
        action="store_true",
        help="replay with whatever envs the file names; this runs code that the file chooses",
    )
    verify.set_defaults(command=verify_command)


def add_export(commands: Commands) -> None:
    """Add the command `export`."""
    from mpi_rollout.commands import export_options

    export_options.add_export(commands)


def add_recover(commands: Commands) -> None:
    """Add the command `recover`."""
    recover = commands.add_parser("recover", help="make a complete file of the steps that a killed run has committed")
    recover.add_argument("file", metavar="FILE.part", type=path)
    recover.add_argument(
        "dest", metavar="DEST", nargs="?", type=path, help="file to write; must not exist (default: FILE)"
    )
    recover.add_argument("--num-steps", type=int, metavar="N", help="take only the first N steps of each env")
    recover.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    recover.set_defaults(command=recover_command)


def add_render(commands: Commands) -> None:
    """Add the command `render`."""
    render = commands.add_parser(
        "render", help="film a stored episode: step it again from its seed and actions (needs the extra `video`)"
    )
    render.add_argument("file", metavar="FILE", type=path)
    render.add_argument(
        "--episode",
        default="best",
        metavar="best|worst|longest|first|N",
        help="which one: by its return, its length, the first, or row N of /episodes (default: best)",
    )
    render.add_argument(
        "--out", metavar="VIDEO", type=path, default="episode.mp4", help=".mp4 or .gif (default: episode.mp4)"
    )
    render.add_argument("--fps", type=float, metavar="F", help="frames per second (default: what the env says)")
    render.add_argument("--anyway", action="store_true", help="film it also if it does not come out as it is stored")
    render.add_argument("--json", action="store_true", help="print what was filmed as one line of JSON")
    envs = render.add_argument_group(
        "the env",
        "Filming runs the code of the env.  Unless it is Gymnasium's own, give the options of the run again: the code "
        "is then your choice, not the file's.",
    )
    add_run_options(envs, ENV_OPTIONS)
    envs.add_argument("--trust", action="store_true", help="make whatever env the file names; this runs its code")
    render.set_defaults(command=render_command)


def show_files(files: Sequence[str], lines_of: Callable[[str], list[str]], as_json: bool) -> int:
    """Print the lines of a command about each file, even where it fails on some; return the worst exit code.

    Raises
    ------
    RolloutError
        There is only one file, and it fails; or somebody asked to stop.
    """
    codes = [0]
    for file in files:
        try:
            lines = lines_of(file)
        except RolloutError as error:
            if len(files) == 1 or isinstance(error, Interrupted):
                raise
            say(f"mpi_rollout: {error.shown(as_flag)}\n")
            codes.append(error.exit_code)
            lines = [json.dumps({"file": file, "error": error.shown(as_flag)})] if as_json else []
        if lines:
            _show(lines, as_json)
    return max(codes)


def _show(lines: list[str], as_json: bool) -> None:
    """Print lines; those for people fit their terminal."""
    show(lines if as_json else fitted(lines))


def run_command(options: argparse.Namespace) -> int:
    """Run, or only check that a run would start."""
    from mpi_rollout.collect.run import rehearse, run  # Reads files no more than it must: workers import no h5py.

    config = RolloutConfig(**{field.name: getattr(options, field.name) for field in fields(RolloutConfig)})
    check_used(config)
    if options.dry_run:
        show([rehearse(config, config.expect_ranks or 1)])
        return 0
    return with_stacks(lambda: run(config))


def inspect_command(options: argparse.Namespace) -> int:
    """Show what is in files."""
    from mpi_rollout.commands.inspection import figures_of, inspect

    files, plot = options.files, options.plot
    if options.out is not None and plot is not True:
        raise UsageError("--out is the folder of pictures; give --plot without a name, too")
    if plot not in (None, True) and len(files) > 1:
        raise UsageError(f"--plot PNG draws one file, got {len(files)}; leave PNG out")
    figures = figures_of(files, options.out) if plot is True else dict.fromkeys(files, plot)
    return show_files(files, lambda file: inspect(file, options.json, figures[file]), options.json)


def list_command(options: argparse.Namespace) -> int:
    """Show the runs of the folders that were named."""
    from mpi_rollout.commands.listing import list_runs

    folders = options.folders or ["results" if os.path.isdir("results") else "."]
    show(list_runs(folders, options.json))
    return 0


def plot_command(options: argparse.Namespace) -> int:
    """Draw files of studies."""
    from mpi_rollout.studies.picture import plot_study
    from mpi_rollout.studies.plan import check_packages

    check_packages(["scipy"])
    for file in options.files:
        show(plot_study(file))
    return 0


def doctor_command(options: argparse.Namespace) -> int:
    """Check this machine."""
    from mpi_rollout.doctor import doctor

    check_seconds("--timeout-s", options.timeout_s)
    return doctor(options.out, options.env, options.json, options.timeout_s)


def verify_command(options: argparse.Namespace) -> int:
    """Check files, and replay some of their episodes."""
    from mpi_rollout.commands.checking import verify

    if options.replay < 0:
        raise UsageError(f"--replay must be at least 0, got {options.replay}")
    consent = {name: getattr(options, name) for name in (*ENV_OPTIONS, "trust")}
    if not options.replay and (idle := [name for name in (*consent, "replay_seed") if getattr(options, name)]):
        raise UsageError(f"{flag(idle[0])} is for --replay N, which is not given; add it, or leave this out")
    return show_files(
        options.files,
        lambda file: verify(file, options.replay, options.replay_seed, options.json, **consent),
        options.json,
    )


def render_command(options: argparse.Namespace) -> int:
    """Film an episode."""
    from mpi_rollout.commands.consent import Consent
    from mpi_rollout.commands.render import Shot, render

    consent = Consent(**{name: getattr(options, name) for name in (*ENV_OPTIONS, "trust")}, what="render")
    shot = Shot(options.episode, options.out, options.fps, options.anyway)
    _show(render(options.file, shot, consent, options.json), options.json)
    return 0


def recover_command(options: argparse.Namespace) -> int:
    """Make a complete file of an unfinished one."""
    from mpi_rollout.commands.checking import recover

    _show(recover(options.file, options.dest, options.num_steps, options.json), options.json)
    return 0


ADDERS: dict[str, Callable[[Commands], None]] = {
    "run": add_run,
    "inspect": add_inspect,
    "list": add_list,
    "verify": add_verify,
    "recover": add_recover,
    "export": add_export,
    "render": add_render,
    "scaling": partial(add_study, "scaling"),
    "compare": partial(add_study, "compare"),
    "tune": partial(add_study, "tune"),
    "plot": add_plot,
    "doctor": add_doctor,
}
