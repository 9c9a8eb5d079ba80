"""Writing and reading datasets in whole chunks with checksums, so that no crash can spoil a row.

The bytes go straight from memory to the file.  HDF5's own path copies them into its chunk cache first; it reached 0.2
to 0.4 of the rate of plain writes where writing chunks directly reached 0.6 to 0.8.

A chunk that is not full is written without its checksum.  When it has more rows it is written again in the same place,
with the same bytes where rows are committed: a writer that is killed meanwhile leaves those as they were.  A full chunk
has its checksum.  It is 4 bytes longer, so HDF5 gives it a new place in the file.  In SWMR mode HDF5 leaves the old
chunk alone, and what the index on the disk says is true at every moment.  The same holds for a compressed chunk: only
full ones are compressed.

HDF5's checksum, fletcher32, is for other readers: it takes zeros for what was written.  `ChunkList` lists every chunk
with a CRC-32 of its bytes in the file.
"""

import os
import zlib
from collections.abc import Iterator

import h5py
import numpy as np

from mpi_rollout.core.columns import Rows, column_of
from mpi_rollout.storage.filters import CHECKSUM_NBYTES, Filters
from mpi_rollout.storage.schema import CHUNK, COMMIT, TABLES, first_digest, listed_names, next_digest

LOOKED_AT = 1024  # Bytes at both ends of a chunk, to see whether it is somewhere.
FEW_CHUNKS = 512  # HDF5 looks through them in a tenth of a millisecond.


class ChunkWriter:
    """Appends rows to one dataset, along its first axis.

    Parameters
    ----------
    chunk_list
        Where each chunk is noted; None for the tables of the list itself.

    Attributes
    ----------
    num_rows
        How many rows the dataset has.
    number
        The dataset's number in the list.
    """

    def __init__(self, dataset: h5py.Dataset, chunk_list: "ChunkList | None" = None):
        self.dataset, self.num_rows, self._list = dataset, len(dataset), chunk_list
        self.number = -1 if chunk_list is None else chunk_list.number_of(dataset)
        self._is_sparse = is_sparse(dataset)
        self.chunks: tuple[int, ...] = dataset.chunks
        self._filters = Filters(dataset)
        nbytes = dataset.dtype.itemsize * int(np.prod(self.chunks))
        self._bytes = np.zeros(nbytes + CHECKSUM_NBYTES, np.uint8)  # Of one chunk and its checksum.
        self._chunk = self._bytes[:nbytes].view(dataset.dtype).reshape(self.chunks)

    def append(self, array: np.ndarray, first_row: int, stop: int, is_last: bool = False) -> None:
        """Write those of an array's first `stop` rows that the dataset does not have yet.

        Rows of the last chunk beyond `stop` are written too, but are not part of the dataset.

        Parameters
        ----------
        array
            C-contiguous; holds whole chunks along its first axis.
        first_row
            The row of the dataset where the array begins; a chunk begins there too.
        is_last
            No rows follow, and the array has zeros beyond `stop`: chunks that are not full get checksums too.
        """
        start = max(self.num_rows - first_row, 0)
        if stop <= start:
            return
        self.dataset.resize(first_row + stop, axis=0)
        rows, envs = self.chunks[0], list(places(self.dataset, 0))
        for row in range(start - start % rows, stop, rows):
            for _, *place in envs:
                part = array[row : row + rows]
                if place:
                    part = part[:, place[0] : place[0] + self.chunks[1]]
                self._write((first_row + row, *place), part, rows if is_last else min(stop - row, rows))
        self.num_rows = first_row + stop

    def _write(self, place: tuple[int, ...], part: np.ndarray, num_rows: int) -> None:
        if self._is_sparse and not part.view(np.uint8).any():  # Also -0.0 is a value.
            return
        if num_rows < self.chunks[0] and part.shape == self._chunk.shape and part.flags.c_contiguous:
            self._store(place, part.reshape(-1).view(np.uint8), self._filters.none, num_rows)
            return
        inside = tuple(map(slice, part.shape))
        if part.shape != self._chunk.shape:  # The chunk goes beyond the last env.
            self._chunk[...] = np.zeros((), self._chunk.dtype)
        self._chunk[inside] = part
        self._write_bytes(place, num_rows)

    def _write_bytes(self, place: tuple[int, ...], num_rows: int) -> None:
        data, mask = self._bytes[:-CHECKSUM_NBYTES], self._filters.none
        if num_rows == self.chunks[0]:
            data, mask = self._filters.encode(self._bytes)
        self._store(place, data, mask, num_rows)

    def _store(self, place: tuple[int, ...], data: np.ndarray, mask: int, num_rows: int) -> None:
        if self._list is None:
            self.dataset.id.write_direct_chunk(place, data, mask)
        else:
            self._list.write(self, place, data, mask, num_rows)

    def seal(self) -> None:
        """Give the last chunks their checksums if they are not full; put zeros beyond the last row."""
        num_left = self.num_rows % self.chunks[0]
        if num_left == 0:
            return
        for place in places(self.dataset, self.num_rows - num_left):
            if self._is_sparse and self.dataset.id.get_chunk_info_by_coord(place).byte_offset is None:
                continue
            data, has_checksum = read_chunk(self.dataset, place)
            if not has_checksum:
                self._bytes[:-CHECKSUM_NBYTES] = data
                self._chunk[num_left:] = np.zeros((), self._chunk.dtype)
                self._write_bytes(place, self.chunks[0])


class TableWriter:
    """Appends rows to a dataset of one axis, in whole chunks; it keeps the last chunk in memory."""

    def __init__(self, dataset: h5py.Dataset, chunk_list: "ChunkList | None" = None):
        self._chunks = ChunkWriter(dataset, chunk_list)
        self._rows = np.zeros(dataset.chunks, dataset.dtype)
        num_left = len(dataset) % len(self._rows)
        if num_left:
            self._rows.view(np.uint8)[:] = read_chunk(dataset, (len(dataset) - num_left,))[0]

    def append(self, rows: np.ndarray) -> None:
        """Write rows behind the last one."""
        while len(rows):
            start = self._chunks.num_rows % len(self._rows)
            part, rows = np.split(rows, [len(self._rows) - start])
            self._rows[start : start + len(part)] = part
            self._chunks.append(self._rows, self._chunks.num_rows - start, start + len(part))

    def seal(self) -> None:
        """See `ChunkWriter.seal`."""
        self._chunks.seal()


def open_tables(file: h5py.File, chunk_list: "ChunkList") -> dict[str, TableWriter]:
    """Return what appends to the tables of a file."""
    return {name: TableWriter(file[name], chunk_list) for name in TABLES if name in file}


class ChunkList:
    """Writes chunks to a file, and lists them at each commit: where they are, and the checksums of their bytes.

    The tables /chunks and /commits are this list.  They have no filters, so that none of their own chunks ever moves,
    and HDF5's index of them only grows.  What is listed can be found without HDF5's index of the other datasets.

    Notes
    -----
    HDF5 does not tell quickly where it has put a chunk: `get_chunk_info_by_coord` looks at all chunks.  It puts a large
    one behind all that is in the file, or behind the chunk before.  So the bytes are looked for there.  Where they are
    not, HDF5 is asked as long as there are few chunks; after that, the list says -1.  Only who reads without HDF5's
    index needs the place, and not for a chunk of zeros: its checksum tells them.
    """

    def __init__(self, file: h5py.File):
        self._file = file
        self._numbers = {name: number for number, name in enumerate(listed_names(file))}
        self._chunks, self._commits = TableWriter(file["chunks"]), TableWriter(file["commits"])
        self._digest = first_digest(file.attrs)
        self._new: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._growing: dict[tuple[int, ...], tuple[int, int]] = {}  # Offset and size of chunks that are not full.
        self._num_chunks = self._behind_last = 0
        self._bytes = open(file.filename, "rb", buffering=0)  # noqa: SIM115  # As long as the file.

    def number_of(self, dataset: h5py.Dataset) -> int:
        """Return the number that stands for a dataset in the list."""
        return self._numbers[str(dataset.name)[1:]]

    def write(self, writer: ChunkWriter, place: tuple[int, ...], data: np.ndarray, mask: int, num_rows: int) -> None:
        """Write the bytes of a chunk, and note it: all bytes of a full one, those of the rows of another one."""
        is_full = num_rows == writer.chunks[0]
        num_checked = len(data) if is_full else len(data) // writer.chunks[0] * num_rows
        key = (writer.number, *(*place[:2], 0)[:2])
        before, nbytes = self._growing.pop(key, (-1, 0))  # Of the same size, it stays where it is.
        likely = before if nbytes == len(data) else -1, self._file.id.get_filesize(), self._behind_last
        writer.dataset.id.write_direct_chunk(place, data, mask)
        offset = self._find(data, likely)
        across = -(-writer.dataset.shape[1] // writer.chunks[1]) if len(place) > 1 else 1
        if offset < 0 and place[0] // writer.chunks[0] * across < FEW_CHUNKS and data.any():
            offset = int(writer.dataset.id.get_chunk_info_by_coord(place).byte_offset)
        if not is_full:
            self._growing[key] = offset, len(data)
        if offset >= 0:
            self._behind_last = offset + len(data)
        self._new[key] = (*key, offset, len(data), mask, num_checked, zlib.crc32(data.data[:num_checked]))

    def _find(self, data: np.ndarray, likely: tuple[int, ...]) -> int:
        """Return the first of some offsets where the file has bytes that begin and end as these do, or -1."""
        ends = [(0, data[:LOOKED_AT].tobytes()), (max(len(data) - LOOKED_AT, 0), data[-LOOKED_AT:].tobytes())]
        for offset in likely:
            if offset >= 0 and all(os.pread(self._bytes.fileno(), len(end), offset + at) == end for at, end in ends):
                return offset
        return -1

    def commit(self, num_steps: int) -> None:
        """List the chunks that were written since the last commit, as those of the first `num_steps` steps."""
        rows = np.array(list(self._new.values()), CHUNK)
        self._chunks.append(rows)
        self._new.clear()
        self._num_chunks += len(rows)
        self._digest = next_digest(self._digest, num_steps, rows)
        self._commits.append(np.array([(num_steps, self._num_chunks, np.frombuffer(self._digest, "u1"))], COMMIT))

    def close(self) -> None:
        """Close the file's descriptor."""
        self._bytes.close()


def is_sparse(dataset: h5py.Dataset) -> bool:
    """Tell whether chunks that have zeros alone are left out of a dataset: few of its rows have values."""
    group, _, name = str(dataset.name)[1:].partition("/")
    return group == "trajectories" and column_of(name).rows is Rows.ENDS


def fill(dataset: h5py.Dataset, rows: np.ndarray, chunk_list: "ChunkList") -> None:
    """Write all rows of a dataset whose length is fixed.

    HDF5's own writing passes through its chunk cache: when the disk refuses the chunk, the cache forgets the error, and
    the next flush crashes the process (HDF5 2.0).
    """
    writer = ChunkWriter(dataset, chunk_list)
    writer.num_rows = 0
    writer.append(rows, 0, len(rows))


def read_chunk(dataset: h5py.Dataset, place: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """Return the bytes of a chunk, and whether it has a checksum; check nothing.

    It is for the process that wrote the chunk.  HDF5 2.0 believes that chunks which it did not filter itself are
    filtered, as long as the file is open.
    """
    filters, mask = Filters(dataset), dataset.id.get_chunk_info_by_coord(place).filter_mask
    stored = np.frombuffer(dataset.id.read_direct_chunk(place)[1], np.uint8)
    return filters.decode(stored, mask), filters.has_checksum(mask)


def places(dataset: h5py.Dataset, row: int) -> Iterator[tuple[int, ...]]:
    """Yield where the chunks begin that hold a row; the row is the first of a chunk.  Only rows and envs are cut."""
    if dataset.ndim == 1:
        yield (row,)
        return
    (_, num_envs, *shape), (_, num_together, *_) = dataset.shape, dataset.chunks
    for env in range(0, num_envs, num_together):
        yield (row, env, *(0 for _ in shape))
