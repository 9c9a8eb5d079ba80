"""Writing groups of episodes, as Minari has them, as fast as HDF5 makes objects.

h5py's own `create_dataset` and `attrs` take three times as long (results/measured/README.md).  Arrays are contiguous;
where a data set is compressed, the larger ones are compressed chunks.
"""

import os

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5o, h5p, h5s, h5t

from mpi_rollout.core.spaces import Tree
from mpi_rollout.data.columns import named_parts
from mpi_rollout.storage.filters import GZIP_LEVEL
from mpi_rollout.storage.untrusted import Tell

CHUNK_NBYTES = 2**20
LEAST_NBYTES = 2**12  # Smaller leaves are not compressed.
PIECE_NBYTES = 2**24
MOST_SPACES = 2**12  # Shapes that are remembered: many episodes have the same length.
META_NBYTES = 2**20  # HDF5 takes room for groups and datasets by so many bytes.


def rows_per_chunk(array: np.ndarray) -> int:
    """Return the number of rows in a compressed chunk."""
    return min(max(CHUNK_NBYTES // max(array[0].nbytes, 1), 1), len(array))


class EpisodeGroups:
    """A file of groups `episode_0`, `episode_1`, ..., written in any order.

    Its format is that of HDF5 1.8: every reader knows it.  Leaves of `LEAST_NBYTES` and more may be compressed.  A file
    that is not new is there, and groups are added to it.
    """

    def __init__(self, tell: Tell, path: str, compresses: bool, is_new: bool = True):
        self._tell, self._compresses = tell, compresses
        access = h5p.create(h5p.FILE_ACCESS)
        access.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
        access.set_meta_block_size(META_NBYTES)
        access.set_fclose_degree(h5f.CLOSE_STRONG)
        access.set_file_locking(False, True)
        if is_new:
            self._file = h5f.create(os.fsencode(path), h5f.ACC_EXCL, fapl=access)
        else:
            self._file = h5f.open(os.fsencode(path), h5f.ACC_RDWR, fapl=access)
        self._root = h5g.open(self._file, b"/")
        self._types: dict[np.dtype, h5t.TypeID] = {}
        self._spaces: dict[tuple[int, ...], h5s.SpaceID] = {(): h5s.create(h5s.SCALAR)}

    def close(self) -> None:
        """Write what is in memory, and close the file."""
        h5f.flush(self._file)
        self._file.close()

    def write(self, columns: dict[str, Tree], attributes: dict[str, float]) -> None:
        """Write the group of an episode; `columns` are its members, arrays in dicts and tuples."""
        group = h5g.create(self._root, b"episode_%d" % attributes["id"])
        for name, value in attributes.items():
            number = np.asarray(value)
            kind = self._type(number.dtype)
            h5a.create(group, name.encode(), kind, self._space(())).write(number, kind)
        for name, tree in columns.items():
            self._tree(group, name.encode(), tree)

    def take(self, path: str, numbers: np.ndarray) -> None:
        """Copy the groups of episodes from another file."""
        with h5py.File(path, "r", locking=False) as other:
            for number in numbers.tolist():
                name = b"episode_%d" % number
                h5o.copy(other.id, name, self._root, name)

    def _tree(self, parent: h5g.GroupID, name: bytes, tree: Tree) -> None:
        if isinstance(tree, np.ndarray):
            return self._leaf(parent, name, tree)
        group = h5g.create(parent, name)
        for key, part in named_parts(tree):
            self._tree(group, key.encode(), part)

    def _leaf(self, parent: h5g.GroupID, name: bytes, array: np.ndarray) -> None:
        kind = self._type(array.dtype)
        # HDF5 copies each property list but its own default one, which takes a fifth of the time of a small dataset.
        plan = self._chunked(array) if self._compresses and array.nbytes >= LEAST_NBYTES else None
        dataset = h5d.create(parent, name, kind, self._space(array.shape), plan)
        if 0 < array.nbytes <= PIECE_NBYTES:
            dataset.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(array), kind)
        elif array.size:
            self._in_pieces(dataset, array, kind)

    def _in_pieces(self, dataset: h5d.DatasetID, array: np.ndarray, kind: h5t.TypeID) -> None:
        """Write a large array with signs of life: to compress it takes minutes."""
        rows = rows_per_chunk(array) * max(PIECE_NBYTES // CHUNK_NBYTES, 1)
        for first in range(0, len(array), rows):
            piece, space = np.ascontiguousarray(array[first : first + rows]), dataset.get_space()
            space.select_hyperslab((first, *(0,) * (array.ndim - 1)), piece.shape)
            dataset.write(h5s.create_simple(piece.shape), space, piece, kind)
            self._tell(f"writing rows from {first:,} on")

    def _chunked(self, array: np.ndarray) -> h5p.PropDCID:
        plan = h5p.create(h5p.DATASET_CREATE)
        plan.set_chunk((rows_per_chunk(array), *array.shape[1:]))
        if array.dtype.itemsize > 1:
            plan.set_shuffle()
        plan.set_deflate(GZIP_LEVEL)
        plan.set_fill_time(h5d.FILL_TIME_NEVER)
        return plan

    def _type(self, dtype: np.dtype) -> h5t.TypeID:
        if dtype not in self._types:
            self._types[dtype] = h5t.py_create(dtype, logical=True)
        return self._types[dtype]

    def _space(self, shape: tuple[int, ...]) -> h5s.SpaceID:
        if len(self._spaces) > MOST_SPACES:
            self._spaces = {(): self._spaces[()]}
        if shape not in self._spaces:
            self._spaces[shape] = h5s.create_simple(shape)
        return self._spaces[shape]
