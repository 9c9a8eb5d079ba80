"""Writing and reading datasets in whole chunks with checksums, so that no crash can spoil a row.

The bytes go straight from memory to the file.  HDF5's own path copies them into its chunk cache first; it reached 0.2
to 0.4 of the rate of plain writes where writing chunks directly reached 0.6 to 0.8.

A chunk that is not full is written without its checksum.  When it has more rows it is written again in the same place,
with the same bytes where rows are committed: a writer that is killed meanwhile leaves those as they were.  A full chunk
has its checksum.  It is 4 bytes longer, so HDF5 gives it a new place in the file.  In SWMR mode HDF5 leaves the old
chunk alone, and what the index on the disk says is true at every moment.  The same holds for a compressed chunk: only
full ones are compressed.
"""

import math
import os
from collections.abc import Iterator

import h5py
import numpy as np

from mpi_rollout.storage.filters import CHECKSUM_NBYTES, Filters, fletcher32


class ChunkWriter:
    """Appends rows to one dataset, along its first axis.

    Attributes
    ----------
    num_rows
        How many rows the dataset has.
    """

    def __init__(self, dataset: h5py.Dataset):
        self.dataset, self.num_rows = dataset, len(dataset)
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
                self._write((first_row + row, *place), part, is_full=is_last or row + rows <= stop)
        self.num_rows = first_row + stop

    def _write(self, place: tuple[int, ...], part: np.ndarray, is_full: bool) -> None:
        if self._is_sparse and not part.view(np.uint8).any():  # Also -0.0 is a value.
            return
        if not is_full and part.shape == self._chunk.shape and part.flags.c_contiguous:
            self.dataset.id.write_direct_chunk(place, part, self._filters.none)
            return
        inside = tuple(map(slice, part.shape))
        if part.shape != self._chunk.shape:  # The chunk goes beyond the last env.
            self._chunk[...] = np.zeros((), self._chunk.dtype)
        self._chunk[inside] = part
        self._write_bytes(place, is_full)

    def _write_bytes(self, place: tuple[int, ...], is_full: bool) -> None:
        data, mask = self._bytes[:-CHECKSUM_NBYTES], self._filters.none
        if is_full:
            data, mask = self._filters.encode(self._bytes)
        self.dataset.id.write_direct_chunk(place, data, mask)

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
                self._write_bytes(place, is_full=True)


class TableWriter:
    """Appends rows to a dataset of one axis, in whole chunks; it keeps the last chunk in memory."""

    def __init__(self, dataset: h5py.Dataset):
        self._chunks = ChunkWriter(dataset)
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


class ChunkReader:
    """Reads a dataset's chunks from where HDF5's index says that they are, not through HDF5, and checks them.

    Parameters
    ----------
    descriptor
        Of the file.

    Attributes
    ----------
    num_chunks, nbytes
        How many chunks were read, and their bytes in the file.
    """

    def __init__(self, dataset: h5py.Dataset, descriptor: int):
        self._dataset, self._descriptor = dataset, descriptor
        self._filters, self._mask = Filters(dataset), 0
        self._nbytes = dataset.dtype.itemsize * math.prod(dataset.chunks)
        self._stored = np.empty(0, np.uint8)  # The chunk that was read last, as it is in the file.
        self.num_chunks = self.nbytes = 0

    def read(self, place: tuple[int, ...], may_lack: bool) -> str:
        """Read the chunk that begins at a place; return what is wrong with it, "" for nothing.

        Parameters
        ----------
        may_lack
            The chunk may have no checksum, since more rows may come into it.
        """
        info = self._dataset.id.get_chunk_info_by_coord(place)
        if info.byte_offset is None:
            return "" if is_sparse(self._dataset) else "there is no such chunk"
        self._mask, nbytes = info.filter_mask, info.size
        has_checksum = self._filters.has_checksum(self._mask)
        whole = self._nbytes + CHECKSUM_NBYTES * has_checksum
        if not (CHECKSUM_NBYTES < nbytes < whole if self._filters.is_packed(self._mask) else nbytes == whole):
            return f"the chunk has {nbytes} bytes, expected {whole}"
        if not (has_checksum or may_lack):
            return "the chunk has no checksum"
        if not self._read_bytes(info.byte_offset, nbytes):
            return "the file ends amid the chunk"
        self.num_chunks, self.nbytes = self.num_chunks + 1, self.nbytes + nbytes
        data = self._stored
        if has_checksum and fletcher32(data[:-CHECKSUM_NBYTES]) != data[-CHECKSUM_NBYTES:].tobytes():
            return "the checksum does not fit"
        return ""

    def _read_bytes(self, offset: int, nbytes: int) -> bool:
        """Tell whether the file has all these bytes, and read them."""
        if offset + nbytes > os.fstat(self._descriptor).st_size:
            return False
        if len(self._stored) != nbytes:
            self._stored = np.empty(nbytes, np.uint8)
        got = os.preadv(self._descriptor, [self._stored.data], offset)
        while 0 < got < nbytes and (more := os.preadv(self._descriptor, [self._stored[got:].data], offset + got)):
            got += more
        return got == nbytes

    def values(self) -> np.ndarray:
        """Return the chunk that was read last, as an array; zlib.error if it cannot be decompressed."""
        data = self._filters.decode(self._stored, self._mask)
        return np.asarray(data.view(self._dataset.dtype).reshape(self._dataset.chunks))


def is_sparse(dataset: h5py.Dataset) -> bool:
    """Tell whether chunks that have zeros alone are left out of a dataset: few of its rows have values."""
    return str(dataset.name).startswith(("/trajectories/final_observations", "/trajectories/final_infos"))


def fill(dataset: h5py.Dataset, rows: np.ndarray) -> None:
    """Write all rows of a dataset whose length is fixed.

    HDF5's own writing passes through its chunk cache: when the disk refuses the chunk, the cache forgets the error, and
    the next flush crashes the process (HDF5 2.0).
    """
    writer = ChunkWriter(dataset)
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
