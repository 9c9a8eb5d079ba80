"""Rows of single envs, picked from where they lie in a file: the file is mapped into memory.

HDF5 reads whole chunks, to hand out a row of one.  Where a chunk is stored as it is in memory, its rows are taken from
there instead.  Its checksum is compared before the first of them is.  Compressed chunks are decompressed whole.
"""

import mmap

import numpy as np

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.stored_run import StoredRun


class ChunkMap:
    """The committed rows of all columns of one file, as they were when this was made."""

    def __init__(self, source: StoredRun):
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
            raise DataError(f"{self._source.path}: {error}") from error

    def _mapped(self, name: str) -> "MappedColumn":
        return MappedColumn(self._source, name, self._bytes)


class MappedColumn:
    """One column; its chunks are numbered as `ChunkReader` does."""

    def __init__(self, source: StoredRun, name: str, file_bytes: np.ndarray):
        self._source, self._name, self._bytes = source, name, file_bytes
        self._leaf: Leaf = source.leaves[name]
        chunks, self._num_rows = source.stored(name), source.num_rows(name)
        self._rows, self._envs, self._across = chunks.rows, chunks.sizes[1], chunks.across
        num_chunks = -(-self._num_rows // self._rows) * self._across
        self._offsets, self._is_packed, self._is_unchecked = chunks.lay_out(num_chunks)
        self._has_packed = bool(self._is_packed.any())

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

    def _check(self, numbers: np.ndarray) -> None:
        chunks = self._source.stored(self._name)
        for number in numbers.tolist():
            chunks.compare(number, self._num_rows)
        self._is_unchecked[numbers] = False

    def _pick_packed(self, places: np.ndarray, chunks: np.ndarray, within: np.ndarray, values: np.ndarray) -> None:
        """Lay rows of compressed chunks into `values`; each chunk is decompressed once."""
        places = places[np.argsort(chunks[places], kind="stable")]
        for group in np.split(places, np.flatnonzero(np.diff(chunks[places])) + 1):
            if not len(group):
                continue
            down, across = divmod(int(chunks[group[0]]), self._across)
            rows, envs = np.divmod(within[group], self._envs)
            start, first = down * self._rows, across * self._envs
            stops = min(start + self._rows, self._num_rows), min(first + self._envs, self._source.config.num_envs)
            chunk = self._source.read(self._name, slice(start, stops[0]), slice(first, stops[1]))
            values[group] = chunk[rows, envs]
