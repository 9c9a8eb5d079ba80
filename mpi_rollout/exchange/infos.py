"""Infos of many envs as one dict, as Gymnasium's vector envs give them: arrays, and masks of the envs that have them.

Each rank collects the infos of its own envs, and here those of all ranks become one dict.  A trainer chooses:

"none"    {}: nobody looks at infos.
columns   a mapping of names to dtypes: these infos travel in the slots, typed, like rewards.
"all"     everything, pickled.  Ranks whose envs gave infos in a step send a message of their own, so this costs nothing
          for envs with empty infos, such as CartPole-v1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from mpi_rollout.core.column_types import MASK_NAME, flat_mask
from mpi_rollout.core.columns import typed_leaves
from mpi_rollout.core.spaces import Leaf, is_castable
from mpi_rollout.errors import DataError, UsageError

InfoDict: TypeAlias = dict[str, Any]  # An env may give anything.
Infos = str | Mapping[str, object]  # The trainer's choice.
TRAINERS_WAY_OUT = 'ask for what the envs say, or connect(..., infos="all")'
FINAL_OBS = "final_obs"  # Gymnasium gives the objects of this name as they are, dicts too.


def info_leaves(infos: Infos, has_final_infos: bool = False) -> tuple[Leaf, ...]:
    """Return the columns of a slot for infos; with `has_final_infos` each is there below `final_info` too.

    `infos` are "none", "all" or, e.g., `{"lives": int, "position": [float, 3], "episode/r": float}`; see
    `core.column_types`.  Anything else is a UsageError.
    """
    if infos in ("none", "all"):
        return ()
    if not isinstance(infos, Mapping):
        raise UsageError(f'infos must be "none", "all" or names with dtypes such as {{"lives": int}}, got {infos!r}')
    try:
        columns = typed_leaves(infos)
    except UsageError as error:
        raise UsageError(f"infos: {error}; infos='all' gives whatever the envs say") from error
    final_columns = [Leaf(("final_info", *leaf.keys), leaf.dtype, leaf.shape) for leaf in columns]
    return (*columns, *final_columns * has_final_infos)


def names_of(infos: Infos) -> bool | tuple[str, ...]:
    """Return which infos envs are asked for: all, none, or those of these top-level names."""
    if isinstance(infos, str):
        return infos == "all"
    return tuple(dict.fromkeys(name.split("/")[0] for name in infos))


@dataclass
class InfoEntries:
    """What some envs give under one key: rows and values, or for dicts the entries inside."""

    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    inside: "EntryDict | None" = None


EntryDict: TypeAlias = dict[str, InfoEntries]


def add_info(entries: EntryDict, info: InfoDict, row: int) -> EntryDict:
    """Add the info of one env to that of others, with its values as they are.

    Of numbers of several types, the first env's type counts for all; a rank does not know the first env.
    """
    for key, value in info.items():
        is_nested = isinstance(value, dict) and key != FINAL_OBS
        if key not in entries:
            entries[key] = InfoEntries(inside={} if is_nested else None)
        entry = entries[key]
        entry.rows.append(row)
        if is_nested != (entry.inside is not None):
            raise _half_a_dict(key, entry.values[0] if is_nested else value)
        if entry.inside is not None:
            add_info(entry.inside, value, row)
        else:
            entry.values.append(value.copy() if isinstance(value, np.ndarray) else value)
    return entries


def _half_a_dict(key: str, value: object) -> DataError:
    return DataError(f"info {key!r} is a dict in one env and {type(value).__name__} in another; make them alike")


def write_columns(
    infos: InfoDict,
    leaf: Leaf,
    values: np.ndarray,
    mask: np.ndarray,
    first_env_index: int = 0,
    way_out: str = TRAINERS_WAY_OUT,
) -> None:
    """Write one info of some envs into its columns; 0 where an env does not have it.

    DataError if it does not have the dtype and shape that were asked for; the last two are for the message.
    """
    rows, given = _find(infos, leaf, len(mask), way_out)
    mask[:] = False
    if len(rows) < len(mask):
        values[...] = 0
    if len(rows) == 0:
        return
    if leaf.keys[-1] == MASK_NAME:
        given = [flat_mask(value) for value in given]
    try:
        column = np.array(given)
        if why := _misfit(column, leaf, len(rows)):
            raise ValueError(why)
        values[np.asarray(rows)] = column
    except (TypeError, ValueError) as error:
        for place, why in _misfits(rows, given, leaf):
            raise DataError(
                f"env {first_env_index + place}: its info {leaf.path!r} should be {leaf.dtype} of shape "
                f"{leaf.shape}, {why}; {way_out}"
            ) from error
        for row, value in zip(rows, given, strict=True):  # NumPy makes floats of an int64 beside a uint64.
            values[row] = value
    mask[np.asarray(rows)] = True


def _misfit(column: np.ndarray, leaf: Leaf, num_rows: int) -> str:
    """Say why values cannot be those of a leaf; "" if they can."""
    is_number = column.dtype.kind in "biufc"
    if not is_number or column.shape != (num_rows, *leaf.shape) or not is_castable(column.dtype, leaf.dtype):
        return f"got {column.dtype} of shape {column.shape[1:]}"
    if leaf.dtype.kind in "iu" and (column.astype(leaf.dtype) != column).any():
        return f"got {column.dtype} with values that {leaf.dtype} cannot hold"
    return ""


def _misfits(rows: Any, given: Any, leaf: Leaf) -> Iterator[tuple[int, str]]:
    """Yield the place of each env whose own value does not fit, and why."""
    for row, value in zip(rows, given, strict=True):
        try:
            why = _misfit(np.asarray(value)[None], leaf, 1)
        except (TypeError, ValueError):
            why = f"got {type(value).__name__}"
        if why:
            yield int(row), why


def _find(infos: InfoDict, leaf: Leaf, num_envs: int, way_out: str) -> tuple[Sequence[int] | np.ndarray, Any]:
    """Return the rows and values of one info, of the entries of a loop or of the infos of a vector env."""
    rows: Any = []
    values: Any = infos
    for key in leaf.keys:
        if not isinstance(values, dict):
            raise DataError(f"infos: {leaf.path!r}: {leaf.keys[0]!r} is not a dict in what the envs say; {way_out}")
        entry = values.get(key)
        if entry is None:
            return [], []
        if isinstance(entry, InfoEntries):
            rows, values = entry.rows, entry.values if entry.inside is None else entry.inside
        else:
            rows = np.flatnonzero(values.get(f"_{key}", np.ones(num_envs, bool)))
            values = entry if isinstance(entry, dict) else _of_envs(entry, num_envs, leaf)[rows]
    return rows, values


def _of_envs(entry: object, num_envs: int, leaf: Leaf) -> np.ndarray:
    """Return an info of natively vectorized envs as an array with a row for each; they may give one for all."""
    array = np.asarray(entry)
    if array.shape[:1] == (num_envs,) and array.ndim != len(leaf.shape):
        return array
    return np.broadcast_to(array, (num_envs, *array.shape))


def add_columns(infos: InfoDict, leaf: Leaf, values: np.ndarray, mask: np.ndarray) -> None:
    """Put the columns of one info into a dict of infos, if any env has it."""
    if not mask.any():
        return
    *outer, last = map(str, leaf.keys)
    for key in outer:
        has = infos.get(f"_{key}")
        infos[f"_{key}"] = mask.copy() if has is None else has | mask
        infos = infos.setdefault(key, {})
    values[~mask] = 0
    infos[last], infos[f"_{last}"] = values, mask


def merge_infos(num_envs: int, slices: Iterable[tuple[slice, InfoDict]]) -> InfoDict:
    """Make infos as Gymnasium's vector envs have them, of rows and entries, or infos of vector envs, in env order.

    DataError if envs give values that cannot stand in one array.
    """
    merged: InfoDict = {}
    for rows, infos in slices:
        for key, value in infos.items():
            if isinstance(value, InfoEntries):
                _add_entries(merged, num_envs, rows.start, key, value)
            else:
                _add_arrays(merged, num_envs, rows, key, value)
    return merged


def _add_entries(merged: InfoDict, num_envs: int, start: int, key: str, entries: InfoEntries) -> None:
    rows = [start + row for row in entries.rows]
    before = merged.get(key)
    if before is not None and isinstance(before, dict) != (entries.inside is not None):
        raise _half_a_dict(key, entries.values[0] if entries.inside is None else before[merged[f"_{key}"]][0])
    if entries.inside is not None:
        inside = merged.setdefault(key, {})
        for name, entry in entries.inside.items():
            _add_entries(inside, num_envs, start, name, entry)
    else:
        if key not in merged:
            merged[key] = _array_for(None if key == FINAL_OBS else entries.values[0], num_envs)
        _assign(merged[key], rows, entries.values, key)
    merged.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))[rows] = True


def _array_for(value: object, num_envs: int) -> np.ndarray:
    """Return an array for all envs, of the type of the first value, as Gymnasium's `VectorEnv._add_info` does."""
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(num_envs, type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    return np.full(num_envs, None, object)


def _assign(array: np.ndarray, rows: list[int], values: list[object], key: str) -> None:
    """Assign values one by one where they differ in type: their conversion must not depend on their neighbours."""
    try:
        if array.dtype != object and len(set(map(type, values))) == 1:
            array[rows] = values
        else:
            for row, value in zip(rows, values, strict=True):
                array[row] = value
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise DataError(
            f"info {key!r}: {error}; what envs say must have the same type and shape in all, "
            "make it so or name the infos that are wanted"
        ) from error


def _add_arrays(merged: InfoDict, num_envs: int, rows: slice, key: str, value: object) -> None:
    if isinstance(value, dict):
        inside = merged.setdefault(key, {})
        for name, entry in value.items():
            _add_arrays(inside, num_envs, rows, name, entry)
    elif isinstance(value, np.ndarray) and value.shape[:1] == (rows.stop - rows.start,):
        if key not in merged:
            merged[key] = np.full((num_envs, *value.shape[1:]), None if value.dtype == object else 0, value.dtype)
        merged[key][rows] = value
    else:  # A natively vectorized env may give one value for all its envs.
        merged[key] = value
