"""Options of the command line that several commands have."""

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.errors import UsageError

ParserOrGroup = argparse.ArgumentParser | argparse._ArgumentGroup
MOST = 2**31 - 1  # As MPI counts ranks; and files of studies count in 64 bits what are products of such numbers.


def add_option(parser: ParserOrGroup, field: Field[Any]) -> None:
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


def add_run_options(parser: ParserOrGroup, names: Sequence[str]) -> None:
    """Add these fields of the configuration as options, to a parser or a group of one."""
    for field in fields(RolloutConfig):
        if field.name in names:
            add_option(parser, field)


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


def check_seconds(option: str, seconds: float) -> None:
    """Raise UsageError if an option is no length of time."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"{option} must be more than 0 and finite, got {seconds:g}")


def switch(name: str) -> str:
    """Return an option without a value, as the user types it: it changes the default."""
    return flag("no-" + name if getattr(RolloutConfig, name) else name)


def difference(name: str, before: object, now: object, as_text: Callable[[Any], str]) -> str:
    """Say that an option is not what it was; `as_text` makes text of its values."""
    if isinstance(now, bool):
        default = getattr(RolloutConfig, name)
        words = ("not given" if value in (default, None) else "given" for value in (before, now))
        return "{} was {}, is {}".format(switch(name), *words)
    return f"{flag(name)} was {as_text(before)}, is {as_text(now)}"
