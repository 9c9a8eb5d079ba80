"""Options of the command line that several commands have."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from mpi_rollout.config import RolloutConfig, flag, switch
from mpi_rollout.errors import UsageError

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
MOST = 2**31 - 1  # As MPI counts ranks; and files of studies count in 64 bits what are products of such numbers.


def add_option(parser: Parser, field: Field[Any]) -> None:
    """Add one field of the configuration as an option, also under the name that it had before."""
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    help_text = field.metadata["help"]
    if isinstance(default, bool):
        action = "store_false" if default else "store_true"
        parser.add_argument(switch(field.name), dest=field.name, default=default, help=help_text, action=action)
        return
    extra = {key: field.metadata[key] for key in ("choices", "metavar") if key in field.metadata}
    extra |= {"dest": field.name, "default": default, "type": _reader(field)}
    if default not in (None, {}):
        help_text += f" (default: {default})"
    parser.add_argument(flag(field.name), help=help_text, **extra)
    if "old_name" in field.metadata:
        parser.add_argument(flag(field.metadata["old_name"]), help=argparse.SUPPRESS, **extra)


def add_run_options(parser: Parser, names: Sequence[str]) -> None:
    """Add these fields of the configuration as options, to a parser or a group of one."""
    for field in fields(RolloutConfig):
        if field.name in names:
            add_option(parser, field)


def add_job_options(parser: Any, of: str, repeats: int, timeout_s: float, dry_run: str) -> None:
    """Add what all commands have that start jobs.

    Parameters
    ----------
    of
        What is repeated.
    repeats, timeout_s
        Defaults.
    dry_run
        What `--dry-run` does.
    """
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"number of jobs of each {of} (default: {repeats})"
    )
    parser.add_argument("--order-seed", type=int, default=0, help="seed of the order of the jobs (default: 0)")
    parser.add_argument(
        "--timeout-s", type=float, default=timeout_s,
        help=f"seconds that a job, or an env measured by itself, may take; a longer one fails (default: {timeout_s:g})",
    )  # fmt: skip
    parser.add_argument(
        "--launcher",
        default="",
        help="command that starts the ranks, up to -n, such as 'srun --mpi=pmix' (default: mpirun)",
    )
    parser.add_argument("--dry-run", action="store_true", help=dry_run)


def _reader(field: Field[Any]) -> Callable[[str], Any]:
    if field.name == "env_kwargs":
        return json_value
    if field.name == "out":
        return path
    return next((kind for kind in (int, float) if kind.__name__ in str(field.type)), str)


path = os.path.expanduser  # Shells leave the ~ of --out=~/run.h5 as it is.


def json_value(text: str) -> Any:
    """Read the value of --env-kwargs; `RolloutConfig` says what it may be.

    Raises
    ------
    UsageError
        It is not JSON.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"--env-kwargs must be a JSON object such as '{{\"level\": 3}}', got {text!r}: {error}"
        ) from error


def numbers(option: str, what: str, example: str, text: str) -> tuple[int, ...]:
    """Read a list of whole numbers from 1 to `MOST`, in ascending order.

    Raises
    ------
    UsageError
        It is no such list.
    """
    try:
        found = {int(part) for part in text.split(",")}
    except ValueError:
        found = {0}
    if min(found) < 1:
        raise UsageError(f"{option} must be {what} such as {example}, got {text!r}")
    if max(found) > MOST:
        raise UsageError(f"{option} must be {what} up to {MOST}, got {max(found)}")
    return tuple(sorted(found))


def ranks_list(text: str) -> tuple[int, ...]:
    """Read the value of --ranks; 1 is added.

    Raises
    ------
    UsageError
        It is no list of numbers of ranks.
    """
    return tuple(sorted({1, *numbers("--ranks", "numbers of ranks", "1,2,4,8", text)}))
