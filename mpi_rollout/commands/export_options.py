"""The options of `export`."""

import argparse
from typing import Any

from mpi_rollout.options import Commands, Parser, path
from mpi_rollout.process.console import show

COMPRESSIONS = "none", "gzip"


def add_export(commands: Commands) -> None:
    """Add the command `export` with its kinds of files."""
    export = commands.add_parser("export", help="write the data as a Minari data set, or as a file of D4RL")
    kinds = export.add_subparsers(required=True, metavar="KIND")
    _add_minari(kinds)
    _add_d4rl(kinds)


def _add_minari(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "minari",
        help="a Minari data set",
        description="Write a data set for minari.load_dataset, where Minari looks for it: in MINARI_DATASETS_PATH, or "
        "~/.minari/datasets.  Under mpirun the ranks share the work.",
    )
    _add_files(parser)
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
    _add_common(parser, "replace the data set of this id when the new one is complete")
    parser.set_defaults(command=minari_command)


def _add_d4rl(kinds: Commands) -> None:
    parser = kinds.add_parser(
        "d4rl",
        help="a file of D4RL",
        description="Write all transitions one after the other: observations, actions, rewards, terminals, timeouts, "
        "next_observations and infos.",
    )
    _add_files(parser)
    parser.add_argument("out", metavar="OUT", type=path, help="file to write")
    parser.add_argument(
        "--float32", action="store_true", help="store floats as float32, as D4RL's own files do (default: as they are)"
    )
    parser.add_argument("--compression", choices=COMPRESSIONS, default="gzip", help="(default: gzip)")
    algorithm = "what chose the actions, for metadata/algorithm (default: the run's --policy)"
    parser.add_argument("--algorithm-name", metavar="NAME", help=algorithm)
    _add_common(parser, "replace the file OUT when the new one is complete")
    parser.set_defaults(command=d4rl_command)


def _add_files(parser: Parser) -> None:
    files = "a file of a run, complete or not; several of one env become one"
    parser.add_argument("files", metavar="FILE", nargs="+", type=path, help=files)


def _add_common(parser: Parser, overwrite: str) -> None:
    parser.add_argument("--overwrite", action="store_true", help=overwrite)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")


def _values(options: argparse.Namespace, *but: str) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in ("command", "files", *but)}


def minari_command(options: argparse.Namespace) -> int:
    """Write a Minari data set."""
    from mpi_rollout.commands.export import export_minari

    lines = export_minari(options.files, options.dataset_id, _values(options, "dataset_id"))
    if lines:
        show(lines)
    return 0


def d4rl_command(options: argparse.Namespace) -> int:
    """Write a file of D4RL."""
    from mpi_rollout.commands.export import export_d4rl

    show(export_d4rl(options.files, options.out, _values(options, "out")))
    return 0
