"""Chunks as they are in a file: found, compared with their checksums, decoded.  Of HDF5, only its index is used.

A file lists its chunks itself, see `ChunkList`: what its last commit lists counts.
"""

import os
import threading
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import h5py
import numpy as np

from mpi_rollout.errors import ContentError
from mpi_rollout.storage.filters import CHECKSUM_NBYTES, Filters
from mpi_rollout.storage.schema import CHUNK, is_sparse
from mpi_rollout.storage.untrusted import is_of_reading

one_thread = threading.RLock()  # The chunk that was read last is kept, and h5py's own lock is not held meanwhile.
os.register_at_fork(after_in_child=one_thread._at_fork_reinit)  # type: ignore[attr-defined]


class Entries(NamedTuple):
    """The chunks of a dataset in the order of their numbers: these, and rows as of the table /chunks."""

    numbers: np.ndarray
    rows: np.ndarray


class ChunkReader:
    """The chunks of one dataset, numbered in the order of rows, then of envs.

    Parameters
    ----------
    listed
        Rows of the file's list.
    is_sealed
        No run goes on with the file: HDF5's index has the very chunks that are listed.
    needs_index
        HDF5's index must lead to what is listed.  Otherwise it is enough that this is where it was put.

    Attributes
    ----------
    num_chunks, nbytes
        What was read.
    """

    def __init__(self, dataset: h5py.Dataset, descriptor: int, listed: np.ndarray, is_sealed: bool, needs_index: bool):
        self.name, self.dtype = str(dataset.name)[1:], dataset.dtype
        self.shape, self.sizes = dataset.shape, dataset.chunks
        self._num_envs: int = dataset.shape[1] if dataset.ndim > 1 else 1
        self._envs: int = dataset.chunks[1] if dataset.ndim > 1 else 1
        self.rows: int = dataset.chunks[0]
        self.across = -(-self._num_envs // self._envs)
        self._is_sparse, self._is_sealed, self._descriptor = is_sparse(dataset), is_sealed, descriptor
        self._filters, self._needs_index = Filters(dataset), needs_index
        self.row_nbytes: int = dataset.dtype.itemsize * int(np.prod(dataset.chunks[1:], dtype=object))
        self._index = self._last_of_each(indexed_chunks(dataset, is_needed=needs_index))
        self._listed = self._last_of_each(listed)
        self._stored, self._mask = np.empty(0, np.uint8), 0  # The chunk that was read last, as it is in the file.
        self.num_chunks = self.nbytes = 0

    def _last_of_each(self, entries: np.ndarray) -> Entries:
        """Return the last entry of each chunk, in the order of chunks."""
        backwards = entries[::-1]
        numbers = backwards["row"] // self.rows * self.across + backwards["env"] // self._envs
        numbers, places = np.unique(numbers, return_index=True)
        return Entries(numbers, backwards[places])

    @property
    def num_listed_rows(self) -> int:
        """The rows of a table that are listed."""
        if not len(self._listed.rows):
            return 0
        last = self._listed.rows[-1]
        is_full = last["num_checked"] == last["nbytes"]
        return int(last["row"]) + (self.rows if is_full else int(last["num_checked"]) // self.row_nbytes)

    def _num_chunks_of(self, num_rows: int) -> int:
        return -(-num_rows // self.rows) * self.across

    def lay_out(self, num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where the chunks of the first rows begin in the file, which are packed or missing, and which are not.

        Nothing was compared with its checksum.
        """
        num_chunks = self._num_chunks_of(num_rows)
        numbers = self._index.numbers[: np.searchsorted(self._index.numbers, num_chunks)]
        entries = self._index.rows[: len(numbers)]
        offsets, is_packed = np.zeros(num_chunks, np.int64), np.ones(num_chunks, np.bool_)
        offsets[numbers] = entries["offset"]
        packed = [mask for mask in np.unique(entries["filter_mask"]).tolist() if self._filters.is_packed(mask)]
        is_packed[numbers] = np.isin(entries["filter_mask"], packed)
        return offsets, is_packed, ~is_packed

    def place(self, number: int) -> tuple[int, int]:
        """Return the row and the env where a chunk begins."""
        down, across = divmod(number, self.across)
        return down * self.rows, across * self._envs

    def missing(self, num_rows: int) -> str:
        """Say which chunk of the first rows is missing, "" if all are there.  No chunk is read."""
        expected = self._num_chunks_of(num_rows)
        for numbers in (entries.numbers for entries in [self._listed] + [self._index] * self._needs_index):
            there = numbers[: np.searchsorted(numbers, expected)]
            if len(there) < expected and not self._is_sparse:
                gap = np.flatnonzero(there != np.arange(len(there)))
                return self._named(int(gap[0]) if len(gap) else len(there), "there is no such chunk")
        return ""

    def disagreement(self) -> str:
        """Say which chunk HDF5's index does not have as it is listed, "" if it has them all.  No chunk is read."""
        (listed, rows), (indexed, others) = self._listed, self._index
        if len(different := np.setxor1d(listed, indexed)):
            where = "the list of chunks" if different[0] in indexed else "HDF5's index"
            return self._named(int(different[0]), f"there is no such chunk in {where}")
        differs = (rows["nbytes"] != others["nbytes"]) | (rows["filter_mask"] != others["filter_mask"])
        at = int(differs.argmax()) if differs.any() else -1
        sizes = f"the chunk has {others['nbytes'][at]} bytes, {rows['nbytes'][at]} are listed" if at >= 0 else ""
        return self._named(int(listed[at]), sizes) if sizes else ""

    def indexed(self, rows: slice) -> np.ndarray:
        """Return where HDF5's index has the chunks that hold some rows, as rows of the table /chunks."""
        numbers = list(self.numbers(rows))
        return self._index.rows[np.isin(self._index.numbers, numbers)]

    def _named(self, number: int, problem: str) -> str:
        """Put the rows and envs of a chunk before what is wrong with it."""
        row, env = self.place(number)
        envs = f" of envs {env} to {min(env + self._envs, self._num_envs) - 1}" if self.across > 1 else ""
        return f"{self.name}, rows {row:,} to {min(row + self.rows, self.shape[0]) - 1:,}{envs}: {problem}"

    def numbers(self, rows: slice, envs: slice | None = None) -> Iterator[int]:
        """Yield the numbers of the chunks that hold some rows of some envs."""
        first, stop = (0, self._num_envs) if envs is None else (envs.start, envs.stop)
        for down in range(rows.start // self.rows, -(-rows.stop // self.rows)):
            yield from range(down * self.across + first // self._envs, down * self.across + -(-stop // self._envs))

    def problem(self, number: int, num_rows: int) -> str:
        """Read a chunk; return what is wrong with it, "" for nothing.  The dataset's first `num_rows` rows count."""
        num_rows = min(num_rows - self.place(number)[0], self.rows)
        listed, indexed = _entry(self._listed, number), _entry(self._index, number)
        if listed is not None:
            problem = self._problem_of(listed, indexed, num_rows)
            if problem and not self._needs_index and self._has_been_found(listed):
                problem = ""
        elif indexed is None:
            problem = "" if self._is_sparse else "there is no such chunk"
        else:  # A killed run may have written it after its last commit.
            problem = "the chunk is not listed" if self._is_sealed or not self._is_sparse else ""
        return self._named(number, problem) if problem else ""

    def _problem_of(self, listed: np.void, indexed: np.void | None, num_rows: int) -> str:
        """Read the chunk that HDF5's index has, and compare it with what is listed.

        Before a file is sealed, that may be a newer chunk, which has more rows.
        """
        if indexed is None:
            return "there is no such chunk in HDF5's index"
        nbytes, num_checked = int(listed["nbytes"]), int(listed["num_checked"])
        if num_checked < nbytes and num_checked < num_rows * self.row_nbytes:
            return f"{num_checked} bytes of the chunk are listed, {num_rows} rows of it count"
        is_same = all(indexed[name] == listed[name] for name in ("nbytes", "filter_mask"))
        if not is_same and (self._is_sealed or num_checked == nbytes):
            return f"the chunk has {indexed['nbytes']} bytes, {nbytes} are listed"
        if problem := self._problem_of_size(indexed) or self._read(indexed):
            return problem
        try:
            data = self._stored if is_same else self._filters.decode(self._stored, self._mask)
        except zlib.error as error:
            return f"it cannot be decompressed: {error}"
        return "" if zlib.crc32(data.data[:num_checked]) == listed["crc32"] else "the checksum does not fit"

    def _problem_of_size(self, entry: np.void) -> str:
        mask, nbytes = int(entry["filter_mask"]), int(entry["nbytes"])
        whole = self.rows * self.row_nbytes + CHECKSUM_NBYTES * self._filters.has_checksum(mask)
        fits = CHECKSUM_NBYTES < nbytes < whole if self._filters.is_packed(mask) else nbytes == whole
        if self._is_sealed and not self._filters.has_checksum(mask):
            return "the chunk has no checksum"
        return "" if fits else f"the chunk has {nbytes} bytes, expected {whole}"

    def _has_been_found(self, listed: np.void) -> bool:
        """Tell whether a chunk is where it was put when it was written, and read it; one of zeros need not be there."""
        nbytes, num_checked, crc32 = (int(listed[name]) for name in ("nbytes", "num_checked", "crc32"))
        if nbytes > self.rows * self.row_nbytes + CHECKSUM_NBYTES:
            return False
        if crc32 == zlib.crc32(bytes(num_checked)):
            self._stored, self._mask = np.zeros(nbytes, np.uint8), int(listed["filter_mask"])
            return not self._filters.is_packed(self._mask)
        return not self._read(listed) and zlib.crc32(self._stored.data[:num_checked]) == crc32

    def _read(self, entry: np.void) -> str:
        """Read the bytes of a chunk; return what is wrong, "" for nothing."""
        offset, nbytes, self._mask = int(entry["offset"]), int(entry["nbytes"]), int(entry["filter_mask"])
        if offset < 0 or offset + nbytes > os.fstat(self._descriptor).st_size:
            return "the file ends inside the chunk"
        self._stored, got = np.empty(nbytes, np.uint8), 0
        try:
            while got < nbytes and (more := os.preadv(self._descriptor, [self._stored[got:].data], offset + got)):
                got += more
        except OSError as error:
            return f"the chunk cannot be read: {error.strerror}"
        self.num_chunks, self.nbytes = self.num_chunks + 1, self.nbytes + nbytes
        return "" if got == nbytes else "the file ends inside the chunk"

    def read(self, start: int, stop: int, envs: slice | None = None, into: np.ndarray | None = None) -> np.ndarray:
        """Read rows `start` to `stop` - 1, into an array if one is given; ContentError if a chunk is damaged.

        The array may have another order in memory, and its elements may be whole rows of an env, as void.
        """
        envs = slice(0, self._num_envs) if envs is None else envs
        shape = (stop - start, envs.stop - envs.start, *self.shape[2:])[: len(self.shape)]
        array = np.empty(shape, self.dtype) if into is None else into
        for number in self.numbers(slice(start, stop), envs):
            row, env = self.place(number)
            spans = (start, stop, row, self.rows), (envs.start, envs.stop, env, self._envs)
            outer, inner = zip(*(_overlap(*span) for span in spans[: len(self.shape)]), strict=True)
            with one_thread:
                self.compare(number, stop)
                values = self.values(number)
                if array.dtype != self.dtype:
                    values = values.reshape(-1).view(array.dtype).reshape(self.sizes[:2])
                array[outer] = values[inner]
        return array

    def pick(self, rows: np.ndarray, envs: slice) -> np.ndarray:
        """Read single rows, in any order, of some envs; ContentError if one of their chunks is damaged."""
        array = np.empty((len(rows), *self.read(0, 0, envs).shape[1:]), self.dtype)
        order = np.argsort(rows, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(rows[order] // self.rows)) + 1) if len(rows) else ():
            first = int(rows[places[0]])
            array[places] = self.read(first, int(rows[places[-1]]) + 1, envs)[rows[places] - first]
        return array

    def compare(self, number: int, num_rows: int) -> None:
        """Compare the checksum of a chunk; ContentError if it is damaged."""
        with one_thread:
            if problem := self.problem(number, num_rows):
                raise ContentError(problem)

    def values(self, number: int) -> np.ndarray:
        """Return the chunk that was read last, which is this one, or zeros where there is none.

        ContentError if it cannot be decompressed.
        """
        if _entry(self._listed, number) is None:
            return np.zeros(self.sizes, self.dtype)
        try:
            data = self._filters.decode(self._stored, self._mask)[: self.rows * self.row_nbytes]
        except zlib.error as error:
            raise ContentError(self._named(number, f"it cannot be decompressed: {error}")) from error
        return np.asarray(data.view(self.dtype).reshape(self.sizes))


def _overlap(start: int, stop: int, first: int, size: int) -> tuple[slice, slice]:
    """Return the overlap of a range and a chunk of `size` from `first` on, as slices of each."""
    low, high = max(start, first), min(stop, first + size)
    return slice(low - start, high - start), slice(low - first, high - first)


def _entry(entries: Entries, number: int) -> np.void | None:
    """Return the entry of a chunk."""
    place = np.searchsorted(entries.numbers, number)
    is_there = place < len(entries.numbers) and entries.numbers[place] == number
    return entries.rows[place] if is_there else None


def indexed_chunks(dataset: h5py.Dataset, is_needed: bool) -> np.ndarray:
    """Return where HDF5's index has the chunks of a dataset; ContentError if it is needed and cannot be read."""
    found: list[tuple[int, ...]] = []

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        row, env = (*chunk.chunk_offset, 0)[:2]
        found.append((0, row, env, chunk.byte_offset, chunk.size, chunk.filter_mask, chunk.size, 0))

    try:
        dataset.id.chunk_iter(note)
    except Exception as error:
        if not is_of_reading(error):
            raise
        if is_needed:
            raise ContentError(f"{str(dataset.name)[1:]}: HDF5's index of its chunks cannot be read") from error
    return np.array(found, CHUNK)
