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
        steps, *others = _keys(key, self.ndim)
        selection = (_committed(steps, len(self)), *others)
        return self._source.read(self.name, selection)

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


def _committed(steps: Any, num_rows: int) -> Any:
    """Return an index of the step axis that leads to committed rows only: a dataset may be longer."""
    if isinstance(steps, slice):
        start, stop, stride = steps.indices(num_rows)
        return slice(start, max(start, stop), stride)
    if isinstance(steps, int | np.integer):
        if not -num_rows <= steps < num_rows:
            raise IndexError(f"step {steps} is out of range: there are {num_rows:,} rows")
        return int(steps) % num_rows
    places = np.asarray(steps)
    if places.dtype == np.bool_:
        if places.shape != (num_rows,):
            raise IndexError(f"a mask of steps should have {num_rows:,} elements, got shape {places.shape}")
        return np.flatnonzero(places)
    if places.size and not (-num_rows <= places.min() and places.max() < num_rows):
        raise IndexError(f"steps {places.min()} to {places.max()} are out of range: there are {num_rows:,} rows")
    return places % num_rows if num_rows else places


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
