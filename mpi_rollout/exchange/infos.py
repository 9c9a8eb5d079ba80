"""Infos of many envs as one dict, as Gymnasium's vector envs give them: arrays, and masks of who has what.

Each rank gathers what its own envs say; here the ranks' gatherings become one.  Three ways for a
trainer to have them:

"none"    {}; nothing is looked at.
columns   a mapping of names to dtypes: these infos travel in the slots, typed, like rewards.
"all"     everything that the envs say.  Pickled, and sent in a message of its own by ranks whose envs said anything
          in a step: free for envs whose infos are empty, as those of CartPole-v1.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import DataError, UsageError, words_of

Infos = str | Mapping[str, Any]
FINAL_OBS = "final_obs"  # Under this name Gymnasium gives objects as they are, dicts too.


def info_leaves(infos: Infos, has_final_infos: bool = False) -> tuple[Leaf, ...]:
    """The columns that a slot carries for infos; with `has_final_infos` each also below `final_info`.

    Parameters
    ----------
    infos
        "none", "all" or, e.g., `{"lives": int, "position": (float, (3,)), "episode/r": float}`.

    Raises
    ------
    UsageError
        It is none of these.
    """
    if isinstance(infos, str):
        if infos not in ("none", "all"):
            raise UsageError(
                f'infos must be "none", "all" or names with dtypes such as {{"lives": int}}, got {infos!r}'
            )
        return ()
    if not isinstance(infos, Mapping):
        raise UsageError(f'infos must be "none", "all" or names with dtypes such as {{"lives": int}}, got {infos!r}')
    found = [_leaf(name, kind) for name, kind in infos.items()]
    below = [Leaf(("final_info", *leaf.keys), leaf.dtype, leaf.shape) for leaf in found]
    return tuple(found + below * has_final_infos)


def _leaf(name: str, kind: Any) -> Leaf:
    try:
        dtype, shape = kind if isinstance(kind, tuple) else (kind, ())
        leaf = Leaf(tuple(name.split("/")), np.dtype(dtype), tuple(int(size) for size in shape))
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"infos: {name!r} must have a dtype or (dtype, shape), got {kind!r}: {error}") from error
    if leaf.dtype.kind not in "biufc":
        raise UsageError(f"infos: {name!r} must have a dtype of numbers, got {leaf.dtype}; use infos='all' for others")
    return leaf


def names_of(infos: Infos) -> bool | tuple[str, ...]:
    """What envs are asked for: everything, nothing, or these top-level names."""
    if isinstance(infos, str):
        return infos == "all"
    return tuple(dict.fromkeys(name.split("/")[0] for name in infos))


@dataclass
class InfoEntries:
    """What some envs say under one key: rows and values, or for dicts what they have inside."""

    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    inside: dict[str, "InfoEntries"] | None = None


def tell(told: dict[str, InfoEntries], info: dict[str, Any], row: int) -> dict[str, InfoEntries]:
    """Add the info of one env to that of others: values as they are, so that nothing is decided on too early.

    Of numbers of several types the first env's decides for all; on a rank nobody knows yet who that is.
    """
    for key, value in info.items():
        is_nested = isinstance(value, dict) and key != FINAL_OBS
        if key not in told:
            told[key] = InfoEntries(inside={} if is_nested else None)
        entry = told[key]
        entry.rows.append(row)
        if is_nested != (entry.inside is not None):
            raise _half_a_dict(key, entry.values[0] if is_nested else value)
        if is_nested:
            tell(entry.inside, value, row)
        else:
            entry.values.append(value.copy() if isinstance(value, np.ndarray) else value)
    return told


def _half_a_dict(key: str, value: Any) -> DataError:
    return DataError(f"info {key!r} is a dict in one env and {type(value).__name__} in another; make them alike")


def pack_infos(infos: dict[str, Any]) -> bytes:
    """Pickle what a rank's envs say.

    Raises
    ------
    DataError
        Something of it cannot be pickled.
    """
    try:
        return pickle.dumps(infos, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        for key, value in infos.items():
            try:
                pickle.dumps(value)
            except Exception as cause:
                raise DataError(
                    f"info {key!r} cannot be sent: {words_of(cause)}; name the infos that are wanted, "
                    'or connect(..., infos="none")'
                ) from error
        raise


def unpack_infos(pickled: Any) -> dict[str, Any]:
    """The inverse of `pack_infos`."""
    return pickle.loads(pickled)


def write_columns(infos: dict[str, Any], leaf: Leaf, values: np.ndarray, mask: np.ndarray) -> None:
    """Write one info of some envs into its columns; where none of them has it, the mask is all there is to write.

    Raises
    ------
    DataError
        It has not the dtype and shape that were asked for.
    """
    rows, found = _find(infos, leaf)
    mask[:] = False
    if len(rows) == 0:
        return
    try:
        wanted = np.array(found)
        if wanted.dtype.kind not in "biufc" or wanted.shape != (len(rows), *leaf.shape):
            raise ValueError(f"got {wanted.dtype} of shape {wanted.shape[1:]}")
        values[rows] = wanted
    except (TypeError, ValueError) as error:
        raise DataError(
            f"infos: {'/'.join(leaf.keys)!r} should be {leaf.dtype} of shape {leaf.shape}: {error}; "
            'ask for what the envs say, or connect(..., infos="all")'
        ) from error
    mask[rows] = True


def _find(infos: dict[str, Any], leaf: Leaf) -> tuple[Any, Any]:
    """Rows and values of one info in what a loop has told, or a vector env said."""
    rows, found = [], infos
    for key in leaf.keys:
        if not isinstance(found, dict):
            raise DataError(f"infos: {'/'.join(leaf.keys)!r}: {leaf.keys[0]!r} is no dict in what the envs say")
        entry = found.get(key)
        if entry is None:
            return [], []
        if isinstance(entry, InfoEntries):
            rows, found = entry.rows, entry.values if entry.inside is None else entry.inside
        else:
            rows = np.flatnonzero(found.get(f"_{key}", np.ones(len(entry), bool)))
            found = entry if isinstance(entry, dict) else entry[rows]
    return rows, found


def add_columns(infos: dict[str, Any], leaf: Leaf, values: np.ndarray, mask: np.ndarray) -> None:
    """Hang the columns of one info into a dict of infos, if any env has it."""
    if not mask.any():
        return
    *outer, last = leaf.keys
    for key in outer:
        has = infos.get(f"_{key}")
        infos[f"_{key}"] = mask.copy() if has is None else has | mask
        infos = infos.setdefault(key, {})
    values[~mask] = 0
    infos[last], infos[f"_{last}"] = values, mask


def merge_infos(num_envs: int, parts: Iterable[tuple[slice, dict[str, Any]]]) -> dict[str, Any]:
    """Make infos as Gymnasium's vector envs have them.

    Parameters
    ----------
    parts
        In env order: rows, and what was told of these envs, or the infos of a vector env.

    Raises
    ------
    DataError
        Envs say what cannot stand in one array.
    """
    merged: dict[str, Any] = {}
    for rows, infos in parts:
        for key, value in infos.items():
            if isinstance(value, InfoEntries):
                _add_told(merged, num_envs, rows.start, key, value)
            else:
                _add_arrays(merged, num_envs, rows, key, value)
    return merged


def _add_told(merged: dict[str, Any], num_envs: int, start: int, key: str, told: InfoEntries) -> None:
    rows = [start + row for row in told.rows]
    before = merged.get(key)
    if before is not None and isinstance(before, dict) != (told.inside is not None):
        raise _half_a_dict(key, told.values[0] if told.inside is None else before[merged[f"_{key}"]][0])
    if told.inside is not None:
        inside = merged.setdefault(key, {})
        for name, entry in told.inside.items():
            _add_told(inside, num_envs, start, name, entry)
    else:
        if key not in merged:
            merged[key] = _array_for(None if key == FINAL_OBS else told.values[0], num_envs)
        _assign(merged[key], rows, told.values, key)
    merged.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))[rows] = True


def _array_for(value: Any, num_envs: int) -> np.ndarray:
    """As Gymnasium's `VectorEnv._add_info` has it: of the type of the first value, for all envs."""
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(num_envs, type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    return np.full(num_envs, None, object)


def _assign(array: np.ndarray, rows: list[int], values: list[Any], key: str) -> None:
    """One by one where values differ in type: how they are converted must not depend on their neighbours."""
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


def _add_arrays(merged: dict[str, Any], num_envs: int, rows: slice, key: str, value: Any) -> None:
    if isinstance(value, dict):
        inside = merged.setdefault(key, {})
        for name, entry in value.items():
            _add_arrays(inside, num_envs, rows, name, entry)
    elif isinstance(value, np.ndarray) and value.shape[:1] == (rows.stop - rows.start,):
        if key not in merged:
            merged[key] = np.full((num_envs, *value.shape[1:]), None if value.dtype == object else 0, value.dtype)
        merged[key][rows] = value
    else:  # A natively vectorized env may say something of all its envs together.
        merged[key] = value
