"""The configuration as a file has it: written by this version or an older one, or damaged."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from mpi_rollout import __version__
from mpi_rollout.config import RolloutConfig, flag, switch
from mpi_rollout.errors import DataError, UsageError, as_flag

# Options of older files: those with another name today, and those with another meaning, with the values that they had.
NEW_NAMES = {
    "env_timeout": "env_timeout_s",
    "ft": "on_rank_loss",
    "inference": "policy_on",
    "start_timeout": "start_timeout_s",
}
OLD_CHECKS = {"check_finite": "finite", "check_bounds": "bounds", "strict_dtypes": "dtypes"}
OLD_VALUES: dict[str, tuple[object, ...]] = {
    "mode": ("sync", "async"),
    "on_env_error": ("abort", "restart"),
    **dict.fromkeys(("dedicated_root", *OLD_CHECKS), (False, True)),
}


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an older version's file by the names and values of today.

    Raises
    ------
    ValueError
        An option of then has a value that it could not have.
    """
    old = {name: values[name] for name in OLD_VALUES if name in values}
    for name, value in old.items():
        if not any(value == known and type(value) is type(known) for known in OLD_VALUES[name]):
            raise ValueError(f"{flag(name)} of its run cannot be {json.dumps(value)[:80]}")
    new = {NEW_NAMES.get(name, name): value for name, value in values.items() if name not in old}
    if "mode" in old:
        new["batch_size"] = values.get("batch_size", 1) if old["mode"] == "async" else None
    if "on_env_error" in old:
        new["max_env_restarts"] = values.get("max_env_restarts", 10) if old["on_env_error"] == "restart" else 0
    if old.get("dedicated_root"):
        new["root_envs"] = 0
    if checks := ",".join(word for name, word in OLD_CHECKS.items() if old.get(name)):
        new["env_checks"] = checks
    return new


def read_config(text: object, path: str) -> RolloutConfig:
    """Read the attribute `config` of the file `path`, as `RolloutConfig.to_json` gives it.

    Options that the file does not have yet get their defaults.

    Raises
    ------
    DataError
        It is no configuration, or a newer version's, which has options that are unknown here.
    """
    try:
        values = json.loads(text)  # type: ignore[arg-type]  # A damaged file may have anything there.
    except (TypeError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DataError(f"{path}: its attribute config should be a JSON object, got {str(text)[:80]!r}")
    try:
        values = renamed(values)
        if unknown := sorted(values.keys() - {field.name for field in fields(RolloutConfig)}):
            raise DataError(
                f"{path}: its run had the option {flag(unknown[0])}, which mpi_rollout {__version__} does not know; "
                "read it with the version that wrote it"
            )
        return RolloutConfig(**values)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    except UsageError as error:
        raise DataError(f"{path}: no run has its options: {error.shown(as_flag)}") from error


def difference(name: str, before: object, now: object, as_text: Callable[[object], str]) -> str:
    """Say that an option is not what it was; `as_text` makes text of its values."""
    if isinstance(now, bool):
        default = getattr(RolloutConfig, name)
        words = ("not given" if value in (default, None) else "given" for value in (before, now))
        return "{} was {}, is {}".format(switch(name), *words)
    return f"{flag(name)} was {as_text(before)}, is {as_text(now)}"
