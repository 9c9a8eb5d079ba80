"""The type and the name of a column that a user describes: an info (`--store-infos`, `connect(infos=...)`), an extra.

A type is a dtype, or a dtype and the sizes of the axes: `float`, `(float, (3,))`, `("f4", (8,))`, `["float", 3]`.  In a
name, `/` stands between the keys of nested dicts.  A column may have a mask beside it, which says which envs gave it.

Whoever only reads a configuration needs no Gymnasium: this module does not import it.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import shortened

NUMBERS = "biufc"  # Kinds of dtypes.
STORED = "biuf"  # Kinds of dtypes of infos.
MASK_NAME = "action_mask"
ALL = "all"
EXAMPLE = '\'{"lives": int, "position": [float, 3]}\''
OPTION = Option("store_infos")
WORDS = re.compile(r'"(?:[^"\\]|\\.)*"|([A-Za-z_]\w*)')  # Texts, which stay as they are, and words outside of them.

Types: TypeAlias = dict[str, object]  # Types as a file has them: {"lives": "int64", "position": ["float64", 3]}.


def read_type(kind: object, kinds: str = NUMBERS, most_bytes: int = 64) -> tuple[np.dtype, tuple[int, ...]]:
    """Return the dtype, of these kinds and at most so many bytes, and the shape that a type stands for.

    ValueError if it is none; its message follows the name of the column.
    """
    dtype, *sizes = kind if isinstance(kind, list | tuple) and kind else (kind,)
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = list(sizes[0])
    try:
        if dtype is None or isinstance(dtype, list | tuple | dict):  # NumPy has dtypes for them.
            raise TypeError
        numbers = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise ValueError(f"must have a dtype such as int, float or uint8, got {dtype!r:.80}") from None
    if numbers.kind not in kinds or numbers.itemsize > most_bytes:
        raise ValueError(f"must have a dtype of numbers, such as int, float or uint8, got {numbers}")
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise ValueError(f"must have sizes of at least 1, such as [float, 3], got {kind!r:.80}")
    return numbers, tuple(map(int, sizes))


def check_names(names: Collection[str]) -> None:
    """Refuse names that cannot stand in a file beside each other; ValueError."""
    for name in names:
        *outer, _ = parts = name.split("/")
        if not all(map(is_name, parts)):
            raise ValueError(f"{name!r} cannot be a name in HDF5; leave it out")
        for depth in range(1, len(outer) + 1):
            if (group := "/".join(outer[:depth])) in names:
                raise ValueError(f"{group!r} cannot hold {name!r} and be a column itself")


def is_name(key: str) -> bool:
    """Tell whether a key can be the name of an object in HDF5 and in messages."""
    return key not in ("", ".", "..") and "\0" not in key and key.isprintable()


def mask_name(name: str) -> str:
    """Return the name of a column's mask, as in Gymnasium's vector infos: `episode/_r` for `episode/r`."""
    *outer, last = name.split("/")
    return "/".join([*outer, f"_{last}"])


def read_types(text: str) -> Types | str:
    """Read the value of `--store-infos`, JSON in which words need no quotation marks; UsageError if it is none."""
    if text.strip() == ALL:
        return ALL
    try:
        value = json.loads(WORDS.sub(lambda match: match[0] if match[1] is None else f'"{match[1]}"', text))
    except ValueError as error:
        expected = f" must be {ALL} or types such as {EXAMPLE}, got {text!r:.200}: {error}"
        raise UsageError(OPTION, expected) from error
    return checked_types(value)


def checked_types(value: object) -> Types | str:
    """Return types in their one form: {"lives": "int64", "position": ["float64", 3]}.

    UsageError if they are none, or a file cannot hold them under these names.
    """
    if value == ALL:
        return ALL
    if not isinstance(value, Mapping):
        got = shortened(json.dumps(value), 80)
        raise UsageError(OPTION, f" must be {ALL} or types such as {EXAMPLE}, got {got}")
    types: Types = {}
    for name, kind in value.items():
        try:
            types[str(name)] = _written(*read_type(kind, STORED, most_bytes=8))
        except ValueError as error:
            raise UsageError(OPTION, f": {name!r} {error}") from error
    names = dict.fromkeys([*types, *map(mask_name, types)])  # Names that the user has typed are refused first.
    try:
        check_names(names)
    except ValueError as error:
        raise UsageError(OPTION, f": {error}") from error
    if len(names) < 2 * len(types):
        raise UsageError(OPTION, ": the mask of 'x' is stored as '_x'; an info may not have that name")
    return types


def _written(dtype: np.dtype, shape: Sequence[int]) -> str | list[object]:
    return [dtype.name, *shape] if shape else str(dtype.name)


def types_in(infos: Sequence[Mapping[str, object]]) -> tuple[Types, dict[str, str]]:
    """Return the types of all numbers in some infos of one env, and what is no number, with the reason.

    Later infos add names, and widen types of the same shape: an int may become a float.
    """
    arrays: dict[str, list[np.ndarray]] = {}
    left_out: dict[str, str] = {}
    for keys, value in (named for info in infos for named in _values_in(info)):
        name, kind = "/".join(map(str, keys)), _array_of(keys, value)
        if isinstance(kind, np.ndarray):
            arrays.setdefault(name, []).append(kind)
        else:
            left_out.setdefault(name, kind)
    changing = {name for name, given in arrays.items() if len({array.shape for array in given}) > 1}
    left_out |= dict.fromkeys(changing, "its shape changes")
    kept = [(name, given) for name, given in sorted(arrays.items()) if name not in changing]
    dtypes = [np.result_type(*{array.dtype for array in given}) for _, given in kept]
    return {name: _written(dtype, given[0].shape) for (name, given), dtype in zip(kept, dtypes, strict=True)}, left_out


def _values_in(info: Mapping[str, object], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in info.items():
        if isinstance(value, dict):
            yield from _values_in(value, (*outer, key))
        else:
            yield (*outer, key), value


def _array_of(keys: tuple[str, ...], value: object) -> np.ndarray | str:
    """Return an array of a value's type, or why it cannot be stored."""
    if any(not isinstance(key, str) or not is_name(key) or "/" in key or key.startswith("_") for key in keys):
        return "its name"
    if keys == (MASK_NAME,):
        value = flat_mask(value)
    if not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return type(value).__name__
    array = np.asarray(value)
    if array.dtype.kind not in STORED or array.dtype.itemsize > 8 or 0 in array.shape:
        return f"{array.dtype} of shape {array.shape}"
    return array


def flat_mask(mask: object) -> object:
    """Return the parts of an action mask in one array: for MultiDiscrete actions they come as a tuple."""
    if not isinstance(mask, tuple | list) or not mask:
        return mask
    if all(isinstance(part, np.ndarray | list | tuple) for part in mask):
        return np.concatenate([np.ravel(np.asarray(flat_mask(part))) for part in mask])
    return np.asarray(mask)
