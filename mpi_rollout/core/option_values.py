"""Checks of single values of options, against their types and what the table of options says of them."""

import re
from dataclasses import Field
from types import UnionType
from typing import Any, get_args, get_origin

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.process.clock import MAX_TIMEOUT_S


def check_value(own: "Field[Any]", value: Any) -> None:
    """Raise UsageError if a field cannot have a value, as far as its type and its kind tell."""
    option, kind, least = Option(own.name), own.metadata, own.metadata.get("least")
    if "choices" in kind and value not in kind["choices"]:
        raise UsageError(option, f" must be one of {', '.join(kind['choices'])}, got {value}")
    if value is None and own.default is None:
        return
    if least is not None:
        if not is_of(value, int):
            raise UsageError(option, f" must be a whole number of at least {least}, got {value!r}")
        if value < least:
            raise UsageError(option, f" must be at least {least}, got {value}")
    if kind.get("is_time"):
        check_seconds(option, value)
    if not is_of(value, own.type):
        expected: dict[object, str] = {dict: "must be a JSON object, got", bool: "must be True or False, got"}
        raise UsageError(option, f" {expected.get(get_origin(own.type) or own.type, 'cannot be')} {value!r:.80}")
    if "form" in kind and not re.fullmatch(kind["form"][0], value):
        raise UsageError(option, " " + kind["form"][1].format(value))


def check_seconds(option: Option, value: Any) -> None:
    """Raise UsageError if a value is no time that one can wait."""
    if not (is_of(value, float) and 0 < value <= MAX_TIMEOUT_S):
        raise UsageError(option, f" must be more than 0 s and at most {MAX_TIMEOUT_S:g}, got {value!r}")


def is_of(value: Any, annotation: object) -> bool:
    """Tell whether a value has the type of a field; a whole number is a float as well, a bool is no number."""
    alternatives = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    types = tuple(get_origin(alternative) or alternative for alternative in alternatives)
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types) or (float in types and isinstance(value, int))
