"""Infos as columns: with their masks, and the types that the infos of an env have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from mpi_rollout.core.column_types import is_name, mask_name, read_type
from mpi_rollout.core.info_types import STORED, Types
from mpi_rollout.core.spaces import MASK_NAME, Leaf
from mpi_rollout.errors import UsageError


def typed_leaves(types: Mapping[str, object]) -> tuple[Leaf, ...]:
    """Return the columns of names with types, see `core.column_types`; UsageError for what is no type."""
    return tuple(_typed_leaf(name, kind) for name, kind in types.items())


def _typed_leaf(name: object, kind: object) -> Leaf:
    if not isinstance(name, str):
        raise UsageError(f"{name!r} must be a name with a dtype such as int, float or uint8")
    try:
        return Leaf(tuple(name.split("/")), *read_type(kind))
    except ValueError as error:
        raise UsageError(f"{name!r} {error}") from error


def with_masks(infos: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Return the columns of infos: the values of each, and which envs have it."""
    masks = [Leaf((*leaf.keys[:-1], mask_name(str(leaf.keys[-1]))), np.dtype(np.bool_), ()) for leaf in infos]
    return tuple(column for pair in zip(infos, masks, strict=True) for column in pair)


def values_of(infos: Mapping[str, Any], columns: Iterable[Leaf], envs: slice | np.ndarray) -> Iterator[np.ndarray]:
    """Yield what some envs have said, of the typed infos of all envs: an array for each column, or one 0."""
    for leaf in columns:
        found: Any = reduce(lambda inner, key: inner.get(key, {}), map(str, leaf.keys), infos)
        yield found[envs] if isinstance(found, np.ndarray) else np.zeros((), leaf.dtype)


def types_in(infos: Sequence[Mapping[str, Any]]) -> tuple[Types, dict[str, str]]:
    """Return the types of all numbers in some infos of one env, and what is no number, with the reason.

    Parameters
    ----------
    infos
        The later ones add names, and widen types of the same shape: an int may become a float.
    """
    types: Types = {}
    left_out: dict[str, str] = {}
    for info in infos:
        for keys, value in _values_in(info):
            name, kind = "/".join(map(str, keys)), _kind_of(keys, value)
            if isinstance(kind, np.ndarray):
                types[name] = _widened(types.get(name), kind)
            else:
                left_out.setdefault(name, kind)
    wrong = {name for name, kind in types.items() if kind is None}
    left_out |= dict.fromkeys(wrong, "its shape changes")
    return {name: kind for name, kind in sorted(types.items()) if kind is not None}, left_out


def _values_in(info: Mapping[str, Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in info.items():
        if isinstance(value, dict):
            yield from _values_in(value, (*outer, key))
        else:
            yield (*outer, key), value


def _kind_of(keys: tuple[str, ...], value: object) -> np.ndarray | str:
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


def _widened(before: str | list[object] | None, array: np.ndarray) -> str | list[object] | None:
    dtype, shape = array.dtype, array.shape
    if before is not None:
        old_dtype, old_shape = read_type(before)
        if old_shape != shape:
            return None
        dtype = np.result_type(old_dtype, dtype)
    return [dtype.name, *shape] if shape else str(dtype.name)


def flat_mask(mask: object) -> object:
    """Return the parts of an action mask in one array: for MultiDiscrete actions they come as a tuple."""
    if not isinstance(mask, tuple | list) or not mask:
        return mask
    if all(isinstance(part, np.ndarray | list | tuple) for part in mask):
        return np.concatenate([np.ravel(np.asarray(flat_mask(part))) for part in mask])
    return np.asarray(mask)
