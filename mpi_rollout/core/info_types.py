"""Which infos of the envs are stored, and as what: the option `--store-infos`.

Types are a JSON object: a name, with `/` between the keys of nested dicts, and a dtype, or a list of dtype and sizes.
Who only reads a configuration needs no Gymnasium: this module does not import it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from mpi_rollout.errors import UsageError, shortened

ALL = "all"
EXAMPLE = '\'{"lives": int, "position": [float, 3]}\''
OPTION = "--store-infos"
NUMBERS = "biuf"  # Kinds of dtypes.
WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|([A-Za-z_]\w*)')  # Texts, which stay as they are, and words outside of them.
Types: TypeAlias = dict[str, Any]


def read_types(text: str) -> Types | str:
    """Read the value of `--store-infos`: JSON in which words need no quotation marks.

    Raises
    ------
    UsageError
        It is none.
    """
    if text.strip() == ALL:
        return ALL
    try:
        value = json.loads(WORDS.sub(lambda match: match[0] if match[1] is None else f'"{match[1]}"', text))
    except ValueError as error:
        raise UsageError(f"{OPTION} must be {ALL} or types such as {EXAMPLE}, got {text!r:.200}: {error}") from error
    return checked_types(value)


def checked_types(value: object) -> Types | str:
    """Return types in their one form: {"lives": "int64", "position": ["float64", 3]}.

    Raises
    ------
    UsageError
        They are none, or a file cannot hold them under these names.
    """
    if value == ALL:
        return ALL
    if not isinstance(value, Mapping):
        raise UsageError(f"{OPTION} must be {ALL} or types such as {EXAMPLE}, got {shortened(json.dumps(value), 80)}")
    types = {str(name): _checked(name, kind) for name, kind in value.items()}
    names = set(types) | {mask_name(name) for name in types}
    if len(names) < 2 * len(types):
        raise UsageError(f"{OPTION}: the mask of 'x' is stored as '_x'; an info may not have that name")
    for name in types:
        *outer, _ = name.split("/")
        for depth in range(1, len(outer) + 1):
            if "/".join(outer[:depth]) in names:
                raise UsageError(f"{OPTION}: {'/'.join(outer[:depth])!r} cannot hold {name!r} and be an info itself")
    return types


def _checked(name: object, kind: object) -> str | list[object]:
    if not isinstance(name, str) or not all(map(is_name, name.split("/"))):
        raise UsageError(f"{OPTION}: {name!r} cannot be a name in HDF5; leave it out")
    dtype, *sizes = kind if isinstance(kind, list | tuple) and kind else (kind,)
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = list(sizes[0])
    if not isinstance(dtype, str) or not all(type(size) is int and size > 0 for size in sizes):
        got = shortened(json.dumps(kind, default=repr), 80)
        raise UsageError(f"{OPTION}: {name!r} must have a dtype such as int, or a list such as [float, 3], got {got}")
    try:
        own_dtype = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{OPTION}: {name!r} must have a dtype such as int, float or uint8, got {dtype!r}") from error
    if own_dtype.kind not in NUMBERS or own_dtype.itemsize > 8:
        raise UsageError(f"{OPTION}: {name!r} must have a dtype of numbers, such as int, float or uint8, got {dtype!r}")
    return [own_dtype.name, *sizes] if sizes else own_dtype.name


def is_name(key: str) -> bool:
    """Tell whether a key can be the name of an object in HDF5 and in messages."""
    return key not in ("", ".", "..") and "\0" not in key and key.isprintable()


def mask_name(name: str) -> str:
    """Return the name of an info's mask, as in Gymnasium's vector infos: `episode/_r` for `episode/r`."""
    *outer, last = name.split("/")
    return "/".join([*outer, f"_{last}"])


def dtype_and_shape(kind: str | Sequence[Any]) -> tuple[np.dtype, tuple[int, ...]]:
    """Return what one of the types is, in NumPy's words."""
    if isinstance(kind, str):
        return np.dtype(kind), ()
    return np.dtype(kind[0]), tuple(kind[1:])
