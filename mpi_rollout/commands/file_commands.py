"""The commands about files that are there: what each takes, and what it calls.

What does the work is imported when a command begins: imports are start-up time.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from mpi_rollout.config import ENV_OPTIONS, flag
from mpi_rollout.errors import Interrupted, RolloutError, UsageError, as_flag
from mpi_rollout.parser import Commands, Parser, add_run_options, path
from mpi_rollout.process.console import fitted, say, show

COMPRESSIONS = "none", "gzip"
ENV_CODE = (
    "runs the code of the envs.  Unless they are Gymnasium's own, give the options of the run again: the code is "
)
ENV_CODE += "then your choice, not the file's."


def add_inspect(commands: Commands) -> None:
    """Add the command `inspect`."""
    parser = _add(commands, "inspect", _inspect, "show what is in a file, complete or not")
    parser.add_argument("files", metavar="FILE", nargs="+", type=path)
    plot = (
        "draw returns, lengths, throughput and each rank's time by phase: beside each FILE, as FILE.png, or one FILE "
    )
    plot += "into PNG (needs the extra `plots`)"
    parser.add_argument("--plot", nargs="?", const=True, metavar="PNG", type=path, help=plot)
    parser.add_argument("--out", metavar="FOLDER", type=path, help="folder of the pictures of --plot")


def _inspect(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.inspection import figures_of, inspect

    files, plot = options.files, options.plot
    if options.out is not None and plot is not True:
        raise UsageError("--out is the folder of pictures; give --plot without a name, too")
    if plot not in (None, True) and len(files) > 1:
        raise UsageError(f"--plot PNG draws one file, got {len(files)}; leave PNG out")
    figures = figures_of(files, options.out) if plot is True else dict.fromkeys(files, plot)
    return _show_each(files, lambda file: inspect(file, options.json, figures[file]), options.json)


def add_list(commands: Commands) -> None:
    """Add the command `list`."""
    parser = _add(commands, "list", _list, "list the runs of a folder: how far each one is, and why it ended")
    folders = "default: results if it is there, else the current folder"
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=path, help=folders)


def _list(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.listing import list_runs

    folders = options.folders or ["results" if os.path.isdir("results") else "."]
    return _show(list_runs(folders, options.json), options.json)


def add_verify(commands: Commands) -> None:
    """Add the command `verify`."""
    parser = _add(commands, "verify", _verify, "check all of a file, complete or not")
    parser.add_argument("files", metavar="FILE", nargs="+", type=path)
    replay = "step N episodes again from their seeds and actions, and compare every byte"
    parser.add_argument("--replay", type=int, default=0, metavar="N", help=replay)
    seed = "seed of the choice of these episodes (default: 0)"
    parser.add_argument("--replay-seed", type=int, default=0, metavar="SEED", help=seed)
    _add_envs(parser, "envs of a replay", f"A replay {ENV_CODE}")


def _verify(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.checking import verify

    if options.replay < 0:
        raise UsageError(f"--replay must be at least 0, got {options.replay}")
    consent = _consent(options)
    if not options.replay and (idle := [name for name in (*consent, "replay_seed") if getattr(options, name)]):
        raise UsageError(f"{flag(idle[0])} is for --replay N, which is not given; add it, or leave this out")
    verify_one = lambda file: verify(file, options.replay, options.replay_seed, options.json, **consent)  # noqa: E731
    return _show_each(options.files, verify_one, options.json)


def add_recover(commands: Commands) -> None:
    """Add the command `recover`."""
    parser = _add(commands, "recover", _recover, "make a complete file of the steps that a killed run has committed")
    parser.add_argument("file", metavar="FILE.part", type=path)
    dest = "file to write; must not exist (default: FILE)"
    parser.add_argument("dest", metavar="DEST", nargs="?", type=path, help=dest)
    parser.add_argument("--num-steps", type=int, metavar="N", help="take only the first N steps of each env")


def _recover(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.checking import recover

    return _show(recover(options.file, options.dest, options.num_steps, options.json), options.json)


def add_render(commands: Commands) -> None:
    """Add the command `render`."""
    what = "film a stored episode: step it again from its seed and actions (needs the extra `video`)"
    parser = _add(commands, "render", _render, what)
    parser.add_argument("file", metavar="FILE", type=path)
    episode = "which one: by its return, its length, the first, or row N of /episodes (default: best)"
    parser.add_argument("--episode", default="best", metavar="best|worst|longest|first|N", help=episode)
    out = ".mp4 or .gif (default: episode.mp4)"
    parser.add_argument("--out", metavar="VIDEO", type=path, default="episode.mp4", help=out)
    parser.add_argument("--fps", type=float, metavar="F", help="frames per second (default: what the env says)")
    parser.add_argument("--anyway", action="store_true", help="film it also if it does not come out as it is stored")
    _add_envs(parser, "the env", f"Filming {ENV_CODE}")


def _render(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.consent import Consent
    from mpi_rollout.commands.render import Shot, render

    shot = Shot(options.episode, options.out, options.fps, options.anyway)
    return _show(render(options.file, shot, Consent(**_consent(options), what="render"), options.json), options.json)


def add_export(commands: Commands) -> None:
    """Add the command `export` with its kinds of files."""
    export = commands.add_parser("export", help="write the data as a Minari data set, or as a file of D4RL")
    kinds = export.add_subparsers(required=True, metavar="KIND")
    _add_minari(kinds)
    _add_d4rl(kinds)


def _add_minari(kinds: Commands) -> None:
    where = "Write a data set for minari.load_dataset, where Minari looks for it: in MINARI_DATASETS_PATH, or "
    where += "~/.minari/datasets."
    parser = _add(kinds, "minari", _minari, "a Minari data set", where)
    _add_exported(parser, "replace the data set of this id when the new one is complete")
    parser.add_argument("dataset_id", metavar="ID", help="such as cartpole/random-v0")
    compression = "compress large arrays; by default gzip if the run's file is compressed and a step has 1 KiB or more"
    parser.add_argument("--compression", choices=COMPRESSIONS, help=compression)
    add = parser.add_argument_group("what the metadata say").add_argument
    add("--author", action="append", metavar="NAME", help="who made the data; may be given several times")
    add("--author-email", action="append", metavar="ADDRESS", help="may be given several times")
    add("--code-permalink", metavar="URL", help="the version of the code that made the data")
    add("--algorithm-name", metavar="NAME", help="what chose the actions (default: the run's --policy)")
    add("--description", metavar="TEXT", help="what the data are (default: env, policy, envs and seed of the run)")
    requirement = "a package that the env needs, such as 'mujoco>=3.1'; may be given several times"
    add("--requirement", action="append", dest="requirements", metavar="PACKAGE", help=requirement)
    add("--ref-min-score", type=float, metavar="RETURN", help="for minari.get_normalized_score: that is 0")
    add("--ref-max-score", type=float, metavar="RETURN", help="for minari.get_normalized_score: that is 1")


def _minari(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.export import export_minari

    show(export_minari(options.files, options.dataset_id, _values(options)))
    return 0


def _add_d4rl(kinds: Commands) -> None:
    what = "Write all transitions one after the other: observations, actions, rewards, terminals, timeouts, "
    parser = _add(kinds, "d4rl", _d4rl, "a file of D4RL", f"{what}next_observations and infos.")
    _add_exported(parser, "replace the file OUT when the new one is complete")
    parser.add_argument("out", metavar="OUT", type=path, help="file to write")
    float32 = "store floats as float32, as D4RL's own files do (default: as they are)"
    parser.add_argument("--float32", action="store_true", help=float32)
    parser.add_argument("--compression", choices=COMPRESSIONS, default="gzip", help="(default: gzip)")
    algorithm = "what chose the actions, for metadata/algorithm (default: the run's --policy)"
    parser.add_argument("--algorithm-name", metavar="NAME", help=algorithm)


def _d4rl(options: argparse.Namespace) -> int:
    from mpi_rollout.commands.export import export_d4rl

    show(export_d4rl(options.files, options.out, _values(options)))
    return 0


def _add(
    commands: Commands,
    name: str,
    command: Callable[[argparse.Namespace], int],
    words: str,
    description: str | None = None,
) -> Parser:
    parser = commands.add_parser(name, help=words, description=description)
    parser.add_argument("--json", action="store_true", help="print each result as one line of JSON")
    parser.set_defaults(command=command)
    return parser


def _add_exported(parser: Parser, overwrite: str) -> None:
    files = "a file of a run, complete or not; several of one env become one"
    parser.add_argument("files", metavar="FILE", nargs="+", type=path, help=files)
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    parser.add_argument("--agent", metavar="NAME", help="of envs with several agents, the one whose data to write")


def _values(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in ("command", "files", "typed")}


def _add_envs(parser: Parser, title: str, description: str) -> None:
    envs = parser.add_argument_group(title, description)
    add_run_options(envs, ENV_OPTIONS)
    envs.add_argument("--trust", action="store_true", help="make whatever envs the file names; this runs their code")


def _consent(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in (*ENV_OPTIONS, "trust")}


def _show_each(files: Sequence[str], lines_of: Callable[[str], list[str]], as_json: bool) -> int:
    """Print the lines of a command about each file, even where it fails on some; return the worst exit code.

    RolloutError if there is only one file, and it fails; or if somebody asked to stop.
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


def _show(lines: list[str], as_json: bool) -> int:
    """Print lines, those for people so that they fit their terminal; return exit code 0."""
    show(lines if as_json else fitted(lines))
    return 0
