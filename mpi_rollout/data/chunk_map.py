"""Rows of single envs, picked from where they lie in a file: the file is mapped into memory.

HDF5 reads whole chunks, to hand out a row of one.  Where a chunk is stored as it is in memory, its rows are taken from
there instead.  Its checksum is compared before the first of them is.  Chunks that are compressed come through HDF5.
"""

import math
import mmap

import h5py
import numpy as np

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.data.source import Source
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.chunks import is_sparse
from mpi_rollout.storage.filters import CHECKSUM_NBYTES, Filters, fletcher32


class ChunkMap:
    """The committed rows of all columns of one file, as they were when this was made."""

    def __init__(self, source: Source):
        self._source, self._columns = source, dict[str, MappedColumn]()
        with open(source.locate(), "rb") as file:
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def pick(self, name: str, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return the rows of some (step, env) of a column: an array (len(steps), ...).  DataError if it is damaged."""
        if name not in self._columns:
            self._columns[name] = self._source.attempt(lambda: self._mapped(name), name)
        try:
            return self._columns[name].pick(steps, envs)
        except ContentError as error:
            raise DataError(f"{self._source.path}: trajectories/{name}: {error}") from error

    def _mapped(self, name: str) -> "MappedColumn":
        return MappedColumn(self._source, name, self._bytes)


class MappedColumn:
    """One column; chunks are numbered in the order of steps, then of envs."""

    def __init__(self, source: Source, name: str, file_bytes: np.ndarray):
        dataset: h5py.Dataset = source.file["trajectories"][name]
        self._source, self._name, self._bytes = source, name, file_bytes
        self._leaf: Leaf = source.leaves[name]
        self._rows, self._envs = dataset.chunks[:2]
        self._across = -(-dataset.shape[1] // self._envs)
        self._nbytes = self._leaf.dtype.itemsize * math.prod(dataset.chunks)
        num_chunks = -(-source.num_rows(name) // self._rows) * self._across
        self._offsets, self._sizes = np.full(num_chunks, -1), np.zeros(num_chunks, np.int64)
        self._masks = np.zeros(num_chunks, np.int64)
        dataset.id.chunk_iter(self._note)
        self._sort(Filters(dataset), is_sparse(dataset))

    def _note(self, chunk: h5py.h5d.StoreInfo) -> None:
        number = chunk.chunk_offset[0] // self._rows * self._across + chunk.chunk_offset[1] // self._envs
        if number < len(self._offsets):
            self._offsets[number], self._sizes[number] = chunk.byte_offset, chunk.size
            self._masks[number] = chunk.filter_mask

    def _sort(self, filters: Filters, may_lack: bool) -> None:
        """Find out which chunks lie as in memory, and which of those have a checksum that is not compared yet."""
        masks = [int(mask) for mask in np.unique(self._masks)]
        has_checksum = np.isin(self._masks, [mask for mask in masks if filters.has_checksum(mask)])
        is_packed = np.isin(self._masks, [mask for mask in masks if filters.is_packed(mask)])
        whole = self._nbytes + CHECKSUM_NBYTES * has_checksum
        if may_lack:  # HDF5 knows what is in chunks that are not there.
            is_packed |= self._offsets < 0
        is_inside = (self._offsets >= 0) & (self._offsets + self._sizes <= len(self._bytes))
        if not (is_packed | (is_inside & (self._sizes == whole))).all():
            raise DataError(f"{self._source.path}: trajectories/{self._name}: some of its chunks are not in the file")
        self._is_packed, self._is_unchecked = is_packed, has_checksum & ~is_packed
        self._has_packed = bool(is_packed.any())

    def pick(self, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return rows; see `ChunkMap.pick`."""
        chunks = steps // self._rows * self._across + envs // self._envs
        within = steps % self._rows * self._envs + envs % self._envs
        if not self._has_packed:
            return self._pick_mapped(chunks, within)
        is_packed = self._is_packed[chunks]
        values = np.empty((len(steps), *self._leaf.shape), self._leaf.dtype)
        values[~is_packed] = self._pick_mapped(chunks[~is_packed], within[~is_packed])
        self._pick_packed(np.flatnonzero(is_packed), chunks, within, values)
        return values

    def _pick_mapped(self, chunks: np.ndarray, within: np.ndarray) -> np.ndarray:
        unchecked = self._is_unchecked[chunks]
        if unchecked.any():
            self._check(np.unique(chunks[unchecked]))
        nbytes = self._leaf.nbytes
        if not nbytes or not len(chunks):
            return np.empty((len(chunks), *self._leaf.shape), self._leaf.dtype)
        # An element begins at each byte of the file: rows need not be aligned.
        rows = np.ndarray((len(self._bytes) - nbytes + 1,), np.dtype((np.void, nbytes)), self._bytes.data, 0, (1,))
        picked = rows[self._offsets[chunks] + within * nbytes]
        return picked.view(self._leaf.dtype).reshape(len(chunks), *self._leaf.shape)

    def _check(self, chunks: np.ndarray) -> None:
        for number in chunks.tolist():
            stored = self._bytes[self._offsets[number] :][: self._sizes[number]]
            if fletcher32(stored[:-CHECKSUM_NBYTES]) != stored[-CHECKSUM_NBYTES:].tobytes():
                row = number // self._across * self._rows
                raise ContentError(f"rows {row:,} to {row + self._rows - 1:,}: the checksum does not fit")
        self._is_unchecked[chunks] = False

    def _pick_packed(self, places: np.ndarray, chunks: np.ndarray, within: np.ndarray, values: np.ndarray) -> None:
        """Lay rows of compressed chunks into `values`; each chunk is decompressed once."""
        places = places[np.argsort(chunks[places], kind="stable")]
        for group in np.split(places, np.flatnonzero(np.diff(chunks[places])) + 1):
            if not len(group):
                continue
            down, across = divmod(int(chunks[group[0]]), self._across)
            rows, envs = np.divmod(within[group], self._envs)
            start, first = down * self._rows, across * self._envs
            chunk = self._source.read(self._name, np.s_[start : start + self._rows, first : first + self._envs])
            values[group] = chunk[rows, envs]
