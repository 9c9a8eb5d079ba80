"""The commands about files that are there: what each takes, and what it calls.

`export` stands in `export_options`.  What does the work is imported when a command begins: imports are start-up time.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence

from mpi_rollout.config import ENV_OPTIONS, flag
from mpi_rollout.errors import Interrupted, RolloutError, UsageError, as_flag
from mpi_rollout.options import Commands, add_run_options, path
from mpi_rollout.process.console import fitted, say, show


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


def list_command(options: argparse.Namespace) -> int:
    """Show the runs of the folders that were named."""
    from mpi_rollout.commands.listing import list_runs

    folders = options.folders or ["results" if os.path.isdir("results") else "."]
    show(list_runs(folders, options.json))
    return 0


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


def recover_command(options: argparse.Namespace) -> int:
    """Make a complete file of an unfinished one."""
    from mpi_rollout.commands.checking import recover

    _show(recover(options.file, options.dest, options.num_steps, options.json), options.json)
    return 0


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


def render_command(options: argparse.Namespace) -> int:
    """Film an episode."""
    from mpi_rollout.commands.consent import Consent
    from mpi_rollout.commands.render import Shot, render

    consent = Consent(**{name: getattr(options, name) for name in (*ENV_OPTIONS, "trust")}, what="render")
    shot = Shot(options.episode, options.out, options.fps, options.anyway)
    _show(render(options.file, shot, consent, options.json), options.json)
    return 0


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
