"""Columns of a file that are read when they are asked for, only as far as they are asked for."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Leaf, Space, Tree, leaves, tree_of
from mpi_rollout.storage.stored_run import StoredRun


class Column:
    """One array of a run: `column[t0:t1, e0:e1]` reads these steps of these envs, and no more, as a NumPy array.

    Whole chunks are read from the disk, of many steps and few envs, with their checksums.

    Attributes
    ----------
    name
        Its path below /trajectories.
    """

    def __init__(self, source: StoredRun, name: str):
        self._source, self.name, self._leaf = source, name, source.leaves[name]

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, N, ...): the committed steps, the envs; observations have one step more."""
        return (self._source.num_rows(self.name), self._source.config.num_envs, *self._leaf.shape)

    @property
    def dtype(self) -> np.dtype:
        """The type of its elements."""
        return self._leaf.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        keys = _keys(key, self.ndim)
        steps, envs, *others = keys if len(keys) > 1 else (*keys, slice(None))
        rows, row_key = _places(steps, len(self), "step")
        if isinstance(rows, np.ndarray) and any(not isinstance(each, int | np.integer | slice) for each in keys[1:]):
            raise TypeError("only one axis can have an array, a list or a mask as its index")
        span, env_key = _places(envs, self.shape[1], "env")
        if isinstance(span, np.ndarray):
            span, env_key = slice(0, self.shape[1]), envs
        return self._source.read(self.name, rows, span)[(row_key, env_key, *others)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype}, shape {self.shape}, in {self._source.path}>"


def _keys(key: Any, num_axes: int) -> tuple[Any, ...]:
    """Return an index for the first axis at least; what `...` stands for is written out."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(part is Ellipsis for part in keys):
        place = next(index for index, part in enumerate(keys) if part is Ellipsis)
        whole = (slice(None),) * (num_axes - len(keys) + 1)
        keys = (*keys[:place], *whole, *keys[place + 1 :])
    return keys or (slice(None),)


def _places(index: Any, size: int, word: str) -> tuple[slice | np.ndarray, Any]:
    """Return the range or the places that an index of one axis leads to, and the index of what is read there."""
    if isinstance(index, slice):
        start, stop, stride = index.indices(size)
        places = slice(start, max(start, stop)) if stride == 1 else np.arange(start, stop, stride)
        return places, slice(None)
    if isinstance(index, int | np.integer):
        if not -size <= index < size:
            raise IndexError(f"{word} {index} is out of range: there are {size:,}")
        return slice(int(index) % size, int(index) % size + 1), 0
    array = np.asarray(index)
    if array.dtype == np.bool_:
        if array.shape != (size,):
            raise IndexError(f"a mask of {word}s should have {size:,} elements, got shape {array.shape}")
        return np.flatnonzero(array), slice(None)
    if array.size and not (-size <= array.min() and array.max() < size):
        raise IndexError(f"{word}s {array.min()} to {array.max()} are out of range: there are {size:,}")
    return array.astype(np.int64) % size if size else array.astype(np.int64), slice(None)


def group_tree(names: Iterable[str], group: str, space: Space | None, make: Callable[[str], Tree]) -> Tree:
    """Make a tree of what `make` gives for each column of a group.

    Columns of a space are nested as it is; others, such as extras and infos, as their names are.
    """
    if group in names:
        return make(group)
    if space is not None:
        return tree_of(space, (make(f"{group}/{leaf.path}".strip("/")) for leaf in leaves(space)))
    tree: dict[str, Any] = {}
    for name in names:
        if name.startswith(f"{group}/"):
            *outer, last = name.split("/")[1:]
            place = tree
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = make(name)
    return tree


def columns_of(groups: Iterable[str], leaves_by_name: dict[str, Leaf]) -> list[str]:
    """Return the names of all columns of some groups."""
    wanted = set(groups)
    return [name for name in leaves_by_name if name.partition("/")[0] in wanted]


def map_tree(function: Callable[..., Any], *trees: Tree) -> Tree:
    """Call a function for each leaf, with the arrays that some trees have there; return the tree of its results."""
    if isinstance(trees[0], dict):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(map_tree(function, *members) for members in zip(*trees, strict=True))
    return function(*trees)
