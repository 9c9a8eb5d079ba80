"""Columns of a file that are read when they are asked for, only as far as they are asked for."""

from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from mpi_rollout.core.spaces import Space, Tree, leaves, tree_of
from mpi_rollout.storage.stored_run import StoredRun

Index: TypeAlias = int | slice | EllipsisType | list[Any] | np.ndarray | None  # As NumPy takes it, of one axis or more.
Part: TypeAlias = Any  # An int, a slice or an array of integers, for one axis; None for a new one.


class Column:
    """One array of a run: `column[t0:t1, e0:e1]` reads these steps of these envs, and no more, as a NumPy array.

    Any other index gives what NumPy gives, too: steps, lists, masks, `...`, None.

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
        """Return what NumPy would give for this index of the whole array.

        Only the steps that are asked for are read, and of the envs those from the first to the last one.
        """
        keys = _keys(key, self.shape)
        steps, envs = [place for place, part in enumerate(keys) if part is not None][:2]
        rows, keys[steps] = _rows(keys[steps], len(self))
        span, keys[envs] = _span(keys[envs], self.shape[1], "env")
        return np.asarray(self._source.read(self.name, rows, span)[tuple(keys)])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.dtype}, shape {self.shape}, in {self._source.path}>"


def columns_of(source: StoredRun) -> dict[str, Column]:
    """Return all columns of a file by their names."""
    return {name: Column(source, name) for name in source.leaves}


def _keys(key: Index | tuple[Index, ...], shape: tuple[int, ...]) -> list[Part]:
    """Return an index for each axis, and None for each new one.

    What `...` stands for is written out, and a mask is the places where it is true, an array for each of its axes.
    """
    parts = [_part(part) for part in (key if isinstance(key, tuple) else (key,))]
    numbers = [0 if part is None or part is Ellipsis else max(1, _num_axes_of_mask(part)) for part in parts]
    if (num_given := sum(numbers)) > len(shape) or sum(part is Ellipsis for part in parts) > 1:
        raise IndexError(f"an index must be of at most {len(shape)} axes, with one ellipsis, got {key!r:.80}")
    rest = (slice(None),) * (len(shape) - num_given)
    keys: list[Part] = []
    has_rest, axis = False, 0
    for part, number in zip(parts, numbers, strict=True):
        if part is Ellipsis:
            keys += rest
            has_rest, axis = True, axis + len(rest)
        elif _num_axes_of_mask(part):
            if part.shape != shape[axis : axis + number]:
                raise IndexError(f"a mask must have the shape {shape[axis : axis + number]}, got {part.shape}")
            keys += part.nonzero()
        else:
            keys.append(part)
        axis += number
    return keys if has_rest else [*keys, *rest]


def _part(part: Index) -> Any:
    """Return an index of one axis as an int, a slice, an array, None or `...`; IndexError if it is nothing of these."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    try:
        array = np.asarray(part)
    except ValueError:  # A list whose parts have different lengths.
        array = np.asarray(None)
    if array.size == 0 and not isinstance(part, np.ndarray):
        array = array.astype(np.intp)
    if array.dtype.kind not in "biu" or (array.dtype.kind == "b" and array.ndim == 0):
        raise IndexError(
            f"an index must be integers, slices, `...`, None, or lists or masks of these, got {part!r:.80}"
        )
    return array if array.ndim else int(array)


def _num_axes_of_mask(part: object) -> int:
    return part.ndim if isinstance(part, np.ndarray) and part.dtype.kind == "b" else 0


def _rows(index: Any, size: int) -> tuple[slice | np.ndarray, Any]:
    """Return the steps that an index leads to, each once and in order, and its index in what is read there."""
    span, key = _span(index, size, "step")
    if isinstance(key, slice) and abs(key.step) > 1:
        return np.arange(span.start, span.stop)[:: abs(key.step)], slice(None, None, 1 if key.step > 0 else -1)
    if isinstance(key, np.ndarray):
        rows, places = np.unique(key, return_inverse=True)
        return rows + span.start, places.reshape(key.shape)
    return span, key


def _span(index: Any, size: int, word: str) -> tuple[slice, Any]:
    """Return the range that an index of one axis leads to, and its index in what is read there."""
    try:
        if isinstance(index, slice):
            places = range(size)[index]
            if not places:
                return slice(0, 0), slice(None, None, 1)
            first, last = sorted((places[0], places[-1]))
            return slice(first, last + 1), slice(None, None, places.step)
        places = np.arange(size)[index]
    except IndexError as error:
        raise IndexError(f"{word} index {index!r:.80} is out of range: there are {size:,}") from error
    if not places.size:
        return slice(0, 0), places
    first = int(places.min())
    return slice(first, int(places.max()) + 1), places - first if places.ndim else 0


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
