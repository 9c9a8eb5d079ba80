"""Infos of many envs: one dict as Gymnasium's vector envs give it, or the dict of each env.

The one dict has arrays, and masks of the envs that have an info.

Ranks send the dicts of their envs as they are, and the root makes of them what its caller asks for.  A trainer chooses:

"none"    {}: nobody looks at infos.
columns   a mapping of names to dtypes: these infos travel in the slots, typed, like rewards.
"all"     everything, pickled.  Ranks whose envs gave infos in a step send a message of their own, so this costs nothing
          for envs with empty infos, such as CartPole-v1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import groupby
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
FINAL_INFO = "final_info"
ENV_ERROR = "env_error"  # Why an env was restarted.


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


# The infos of single envs, each with its env's row.  A row may stand twice: the last info of an episode comes before
# that of the reset which follows in the same step.
EnvInfos: TypeAlias = list[tuple[int, InfoDict]]
RankInfos: TypeAlias = EnvInfos | InfoDict  # A dict is that of natively vectorized envs, as Gymnasium has it.
Parts = Sequence[tuple[slice, RankInfos]]  # What ranks said, each with the rows of its envs.
NUMBERS = (bool, int, float, np.number)
UNCHANGING = frozenset((bool, int, float, str, bytes, type(None)))
PYTHON_NUMBERS = (np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.float64))  # What bool, int and float become.


def add_info(gathered: EnvInfos, info: InfoDict, row: int) -> EnvInfos:
    """Add the info of one env to that of others, as it is; nothing where it says nothing."""
    if info:
        gathered.append((row, info if isinstance(info, dict) else dict(info.items())))
    return gathered


def own_copy(value: Any) -> Any:
    """Copy an info, or a value in one: whoever gets it may keep it, and the env may write to its own again."""
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if kind is dict:
        return {key: own_copy(part) for key, part in value.items()}
    if kind is np.ndarray and value.dtype != object:
        return value.copy()
    return value if isinstance(value, np.generic) else deepcopy(value)


def plain(value: Any) -> Any:
    """Make dicts of a dict's own class, at any depth, and new arrays; other values stay the same objects."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return value.copy() if isinstance(value, np.ndarray) else value


def write_columns(
    infos: RankInfos,
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


def _find(infos: RankInfos, leaf: Leaf, num_envs: int, way_out: str) -> tuple[Sequence[int] | np.ndarray, Any]:
    """Return the rows and values of one info, of single envs or of a vector env."""
    if isinstance(infos, dict):
        return _find_in_arrays(infos, leaf, num_envs, way_out)
    pairs = infos
    for key in leaf.keys:
        for _, info in pairs:
            if not isinstance(info, dict):
                raise _no_dict(leaf, way_out)
        pairs = [(row, info[key]) for row, info in pairs if key in info]
    return [row for row, _ in pairs], [value for _, value in pairs]


def _find_in_arrays(infos: InfoDict, leaf: Leaf, num_envs: int, way_out: str) -> tuple[Any, Any]:
    rows: Any = []
    values: Any = infos
    for key in leaf.keys:
        if not isinstance(values, dict):
            raise _no_dict(leaf, way_out)
        entry = values.get(key)
        if entry is None:
            return [], []
        rows = np.flatnonzero(values.get(f"_{key}", np.ones(num_envs, bool)))
        values = entry if isinstance(entry, dict) else _of_envs(entry, num_envs, leaf)[rows]
    return rows, values


def _no_dict(leaf: Leaf, way_out: str) -> DataError:
    return DataError(f"infos: {leaf.path!r}: {leaf.keys[0]!r} is not a dict in what the envs say; {way_out}")


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


def merge_infos(num_envs: int, parts: Parts) -> InfoDict:
    """Make one dict of infos as Gymnasium's vector envs have it, in env order.

    DataError if envs give values that cannot stand in one array, or beside each other.
    """
    merged: InfoDict = {}
    singles: EnvInfos = []
    for rows, infos in parts:
        if isinstance(infos, dict):
            for key, value in infos.items():
                _add_arrays(merged, num_envs, rows, key, value)
        else:
            singles += [(rows.start + row, info) for row, info in infos]
    _add_singles(merged, num_envs, singles)
    return merged


def _add_singles(merged: InfoDict, num_envs: int, infos: EnvInfos) -> None:
    """Do what Gymnasium's `VectorEnv._add_info` does for one env after the other, name by name."""
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for row, info in infos:
        for key, value in info.items():
            column = columns.get(key)
            if column is None:
                columns[key] = column = ([], [])
            column[0].append(row)
            column[1].append(value)
    for key, (rows, values) in columns.items():
        kinds = set(map(type, values))
        if key == FINAL_OBS:
            array = merged.setdefault(key, np.full(num_envs, None, object))
            for row, value in zip(rows, values, strict=True):
                array[row] = value
        elif not any(issubclass(kind, dict) for kind in kinds):
            _add_values(merged, num_envs, key, rows, values)
        else:
            _add_dicts(merged, num_envs, key, zip(rows, values, strict=True))
        merged.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))[rows] = True


def _add_dicts(merged: InfoDict, num_envs: int, key: str, pairs: Iterable[tuple[int, Any]]) -> None:
    """Add an info that is a dict in some envs.

    What is no dict after the first one stands in the dict of all under its row, as Gymnasium has it.
    """
    for is_dict, run in groupby(pairs, lambda pair: isinstance(pair[1], dict)):
        infos = list(run)
        inside: Any = merged.setdefault(key, {}) if is_dict else merged.get(key)
        if is_dict and not isinstance(inside, dict):
            if not any(info for _, info in infos):  # It says nothing.
                continue
            raise DataError(
                f"info {key!r} is a dict in one env and {type(inside).__name__} in one before it, which Gymnasium's "
                "vector envs cannot hold; make them alike, or name the infos that are wanted"
            )
        if is_dict:
            _add_singles(inside, num_envs, infos)
        elif isinstance(inside, dict):
            inside |= infos
        else:
            _add_values(merged, num_envs, key, *map(list, zip(*infos, strict=True)))


def _add_values(merged: InfoDict, num_envs: int, key: str, rows: list[int], values: list[Any]) -> None:
    """Add an info that is no dict in any env."""
    array = merged.get(key)
    if array is None:
        array = merged[key] = _array_for(values[0], num_envs)
    if isinstance(array, dict):
        array |= zip(rows, values, strict=True)
    else:
        _assign(array, rows, values, key)


def _array_for(value: object, num_envs: int) -> np.ndarray:
    """Return an array for all envs, of the type of the first value, as Gymnasium's `VectorEnv._add_info` does."""
    if type(value) in (int, float, bool) or isinstance(value, np.number):
        return np.zeros(num_envs, type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    return np.full(num_envs, None, object)


def _assign(array: np.ndarray, rows: list[int], values: list[Any], key: str) -> None:
    """Assign values one by one where they are not alike: their conversion must not depend on their neighbours."""
    kinds = set(map(type, values))
    kind = next(iter(kinds))
    try:
        if len(kinds) > 1 or array.dtype == object:
            is_alike = False
        elif kind is np.ndarray:
            is_alike = all(value.shape == array.shape[1:] for value in values)
        else:
            is_alike = issubclass(kind, NUMBERS) and array.ndim == 1
        if is_alike:
            array[rows] = values if kind is np.ndarray else np.array(values, array.dtype)
            return
        for row, value in zip(rows, values, strict=True):
            array[row] = value.copy() if isinstance(value, np.ndarray) else value
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


def infos_of_each(num_envs: int, parts: Parts) -> list[InfoDict]:
    """Return the info of each env, as it gave it; it belongs to the caller.

    Where an episode ended, `final_info` is its last info, and the others are those of the reset.
    """
    of_each: list[InfoDict] = [{} for _ in range(num_envs)]
    for rows, infos in parts:
        if isinstance(infos, dict):
            divide(infos, of_each[rows])
            continue
        for row, info in infos:
            place = rows.start + row
            before = of_each[place]
            of_each[place] = own_copy(info) | before if before else own_copy(info)
    return of_each


def divide(infos: InfoDict, of_each: list[InfoDict]) -> None:
    """Give each env its own of infos as Gymnasium's vector envs have them; names that it has already stay."""
    for name, values in infos.items():
        mask = infos.get(f"_{name}")
        if mask is None:  # It is a mask itself, or one value for all.
            continue
        rows = np.flatnonzero(mask).tolist()
        if isinstance(values, dict):
            inner: list[InfoDict] = [{} for _ in of_each]
            divide(values, inner)
            values = inner
        else:
            values = _elements(values)
        for row in rows:
            of_each[row].setdefault(name, values[row])


def _elements(values: np.ndarray) -> list[Any]:
    """Return one info of each env; as numbers of Python where they have most likely been such numbers."""
    if values.dtype == object:
        return list(deepcopy(values))
    return values.tolist() if values.ndim == 1 and values.dtype in PYTHON_NUMBERS else list(values)
