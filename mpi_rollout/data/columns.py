"""Columns of a file that are read when they are asked for, only as far as they are asked for."""

from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from mpi_rollout.core.spaces import Space, Tree, leaves, tree_of
from mpi_rollout.storage.stored_run import StoredRun

Index: TypeAlias = int | slice | EllipsisType | list[int] | np.ndarray  # An index of one axis, as NumPy takes it.


class Column:
    """One array of a run: `column[t0:t1, e0:e1]` reads these steps of these envs, and no more, as a NumPy array.

    Whole chunks are read from the disk, of many steps and few envs, with their checksums.

    Attributes
    ----------
    name
        Its path below /trajectories.
    dtype
        The type of its elements.
    ndim
        The number of axes.
    """

    def __init__(self, source: StoredRun, name: str):
        self._source, self.name, self._leaf = source, name, source.leaves[name]
        self.dtype, self.ndim = self._leaf.dtype, 2 + len(self._leaf.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, N, ...): the committed steps, the envs; observations have one step more."""
        return (self._source.num_rows(self.name), self._source.config.num_envs, *self._leaf.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Index | tuple[Index, ...]) -> np.ndarray:
        steps, envs, *others = _keys(key, self.ndim)
        rows, row_key = _places(steps, len(self), "step")
        if isinstance(rows, np.ndarray) and not all(
            isinstance(part, int | np.integer | slice) for part in (envs, *others)
        ):
            raise TypeError("only one axis can have an array, a list or a mask as its index")
        span, env_key = _places(envs, self.shape[1], "env")
        if isinstance(span, np.ndarray):
            span, env_key = slice(0, self.shape[1]), span
        return self._source.read(self.name, rows, span)[(row_key, env_key, *others)]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype}, shape {self.shape}, in {self._source.path}>"


def columns_of(source: StoredRun) -> dict[str, Column]:
    """Return all columns of a file by their names."""
    return {name: Column(source, name) for name in source.leaves}


def _keys(key: Index | tuple[Index, ...], num_axes: int) -> tuple[Index, ...]:
    """Return an index for each axis: what `...` stands for is written out."""
    keys = key if isinstance(key, tuple) else (key,)
    if not any(part is Ellipsis for part in keys):
        keys = (*keys, Ellipsis)
    place = next(index for index, part in enumerate(keys) if part is Ellipsis)
    return (*keys[:place], *(slice(None),) * (num_axes - len(keys) + 1), *keys[place + 1 :])


def _places(index: Index, size: int, word: str) -> tuple[slice | np.ndarray, slice | int]:
    """Return the range or the places that an index of one axis leads to, and the index of what is read there."""
    if isinstance(index, slice) and (places := range(size)[index]).step == 1:
        return slice(places.start, max(places.start, places.stop)), slice(None)
    try:
        if isinstance(index, int | np.integer):
            place = range(size)[index]
            return slice(place, place + 1), 0
        return np.arange(size)[index], slice(None)
    except IndexError as error:
        raise IndexError(f"{word} index {index!r:.80} is out of range: there are {size:,}") from error


def group_tree(names: Iterable[str], group: str, space: Space | None, make: Callable[[str], Tree]) -> Tree:
    """Make a tree of what `make` gives for each column of a group.

    Columns of a space are nested as it is; others, such as extras and infos, as their names are.
    """
    if group in names:
        return make(group)
    if space is not None:
        return tree_of(space, (make(f"{group}/{leaf.path}".strip("/")) for leaf in leaves(space)))
    tree: Tree = {}
    for name in names:
        if name.startswith(f"{group}/"):
            *outer, last = name.split("/")[1:]
            place = tree
            for key in outer:
                place = place.setdefault(key, {})
            place[last] = make(name)
    return tree


def named_parts(tree: Tree) -> Iterable[tuple[str, Tree]]:
    """Return the members of a dict or a tuple with their names in files."""
    return tree.items() if isinstance(tree, dict) else ((f"_index_{index}", part) for index, part in enumerate(tree))


def named_arrays(path: str, tree: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield the arrays of a tree with their paths in files."""
    if not isinstance(tree, dict | tuple):
        yield path, tree
        return
    for name, part in named_parts(tree):
        yield from named_arrays(f"{path}/{name}", part)
