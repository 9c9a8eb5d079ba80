"""Writing datasets in whole chunks with checksums, so that no crash can spoil a row.

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

import json
import os
import zlib
from typing import TYPE_CHECKING

import h5py
import numpy as np

from mpi_rollout.storage.filters import CHECKSUM_NBYTES, Filters
from mpi_rollout.storage.schema import CHUNK, COMMIT, LIST, TABLES, first_digest, is_sparse, leaf_datasets, next_digest
from mpi_rollout.storage.values import ValueChecks

if TYPE_CHECKING:
    from mpi_rollout.storage.tail import ChunkTail, Tail

LOOKED_AT = 1024  # Bytes at both ends of a chunk, to see whether it is somewhere.
FEW_CHUNKS = 512  # HDF5 looks through them in a tenth of a millisecond.


class FileDatasets:
    """All datasets of a new file, to append to and to commit: columns by names below /trajectories, tables by paths.

    The wrong `values` of columns are counted on the way.  `tail` is the end of what an earlier start has committed.
    """

    def __init__(self, file: h5py.File, tail: "Tail | None" = None):
        self.file, self._list, ends = file, ChunkList(file, tail), {} if tail is None else tail.datasets
        datasets = leaf_datasets(file["trajectories"]) if "trajectories" in file else {}
        self.columns = {
            name: ChunkWriter(dataset, self._list, ends.get(f"trajectories/{name}"))
            for name, dataset in datasets.items()
        }
        tables = filter(file.__contains__, TABLES)
        self.tables = {name: ChunkWriter(file[name], self._list, ends.get(name)) for name in tables}
        self.values = ValueChecks(file.attrs) if tail is None else tail.values

    def append(self, name: str, array: np.ndarray, first_row: int, stop: int, is_last: bool = False) -> None:
        """Write rows of a column, see `ChunkWriter.write`."""
        new = self.columns[name].write(array, first_row, stop, is_last)
        self.values.append(name, array[new], first_row + new.start)

    def commit(self, num_steps: int) -> None:
        """Make the first `num_steps` steps and the observations after them count: the data first, then their number."""
        self.values.write(self.file["trajectories"])
        self._list.commit(num_steps)
        self.file.flush()
        self.file["trajectories"].attrs.modify("num_steps", np.int64(num_steps))
        self.file.flush()

    def note_starts(self, starts: int) -> None:
        """Note by how many starts of its run the file is written."""
        self.file["throughput"].attrs.modify("starts", np.int64(starts))

    def end(self, num_steps: int, env_steps: int, seconds: float, ranks: np.ndarray, is_last: bool) -> None:
        """Write what is known at the end of a start; of a complete run, give all chunks their checksums."""
        throughput = self.file["throughput"]
        throughput.attrs.modify("env_steps", np.int64(env_steps))
        throughput.attrs.modify("seconds", np.float64(seconds))
        self.tables["throughput/ranks"].append(ranks)
        if is_last:
            for column in (*self.columns.values(), *self.tables.values()):
                column.seal()
        self.file.flush()  # What is listed as of steps that are committed already must be in HDF5's index.
        self._list.commit(num_steps)
        self.file.flush()

    def close(self) -> None:
        self._list.close()
        self.file.close()


class ChunkWriter:
    """Appends rows to one dataset, along its first axis, behind its `tail`, if it has rows already.

    `chunk_list` is None for the tables of the list itself.
    """

    def __init__(self, dataset: h5py.Dataset, chunk_list: "ChunkList | None" = None, tail: "ChunkTail | None" = None):
        self.dataset, self.name, self.num_rows, self._list = dataset, str(dataset.name), len(dataset), chunk_list
        self.chunks: tuple[int, ...] = dataset.chunks
        self.envs = range(0, dataset.shape[1], self.chunks[1]) if dataset.ndim > 1 else range(1)
        self._is_sparse, self._filters = is_sparse(dataset), Filters(dataset)
        nbytes = dataset.dtype.itemsize * int(np.prod(self.chunks))
        self._bytes = np.zeros(nbytes + CHECKSUM_NBYTES, np.uint8)  # Room for one chunk and its checksum.
        self._chunk = self._bytes[:nbytes].view(dataset.dtype).reshape(self.chunks)
        self._open = np.zeros(0, dataset.dtype)  # The rows of the last chunk, while it is not full and has no checksum.
        self._unsealed: set[int] = set()  # The first envs of its chunks that the file has.
        if tail is not None:
            self.num_rows, self._open, self._unsealed = tail.num_rows, tail.rows, set(tail.chunks["env"].tolist())

    def write(self, array: np.ndarray, first_row: int, stop: int, is_last: bool = False) -> slice:
        """Write those of an array's first `stop` rows that the dataset does not have yet; return which these are.

        Rows of the last chunk beyond `stop` are written too, but are not part of the dataset.

        Parameters
        ----------
        array
            C-contiguous.  The first `stop` rows, and those of the chunk that they end in, stay until the next call.
        first_row
            The row of the dataset where the array begins; a chunk begins there too.
        is_last
            No rows follow, and the array has zeros beyond `stop`: chunks that are not full get checksums too.
        """
        start, rows = max(self.num_rows - first_row, 0), self.chunks[0]
        if stop <= start:
            return slice(start, start)
        if first_row + stop > len(self.dataset):
            self.dataset.resize(first_row + stop, axis=0)
        for row in range(start - start % rows, stop, rows):
            self._write_row(first_row + row, array[row : row + rows], rows if is_last else min(stop - row, rows))
        self.num_rows = first_row + stop
        self._open = array[stop - stop % rows : 0 if is_last else stop]
        return slice(start, stop)

    def append(self, rows: np.ndarray) -> None:
        """Write rows of a table behind its last one."""
        array = np.concatenate([self._open, rows])
        self.write(array, self.num_rows - len(self._open), len(array))

    def _write_row(self, row: int, array: np.ndarray, num_rows: int) -> None:
        """Write the chunks of all envs that begin in a row; `num_rows` of their rows count."""
        for env in self.envs:
            part = array if array.ndim == 1 else array[:, env : env + self.chunks[1]]
            is_unsealed = env in self._unsealed  # Its rows beyond those that count may have had values.
            if self._is_sparse and not is_unsealed and not part.view(np.uint8).any():  # Also -0.0 is a value.
                continue
            (self._unsealed.add if num_rows < self.chunks[0] else self._unsealed.discard)(env)
            data, mask = self._encoded(part, num_rows)
            place = (row, env, *(0 for _ in self.chunks))[: len(self.chunks)]
            if self._list is None:
                self.dataset.id.write_direct_chunk(place, data, mask)
            else:
                self._list.write(self, place, data, mask, num_rows)

    def _encoded(self, part: np.ndarray, num_rows: int) -> tuple[np.ndarray, int]:
        """Return the bytes of a chunk as they are in the file, with a checksum if it is full, and its filter mask."""
        is_full = num_rows == self.chunks[0]
        if not is_full and part.shape == self.chunks and part.flags.c_contiguous:
            return part.reshape(-1).view(np.uint8), self._filters.none
        if part.shape != self.chunks:  # The chunk goes beyond the last env, or the last row of a table.
            self._chunk[...] = np.zeros((), self._chunk.dtype)
        self._chunk[tuple(map(slice, part.shape))] = part
        return self._filters.encode(self._bytes) if is_full else (self._bytes[:-CHECKSUM_NBYTES], self._filters.none)

    def seal(self) -> None:
        """Give the last chunks their checksums if they are not full; put zeros beyond the last row."""
        if num_left := len(self._open):
            array = np.zeros((self.chunks[0], *self._open.shape[1:]), self._open.dtype)
            array[:num_left] = self._open
            self._write_row(self.num_rows - num_left, array, self.chunks[0])
            self._open = self._open[:0]


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

    def __init__(self, file: h5py.File, tail: "Tail | None" = None):
        self._file, ends = file, {} if tail is None else tail.datasets
        names: list[str] = json.loads(file["chunks"].attrs["datasets"])  # Of a file that this process has made.
        self._numbers = {f"/{name}": number for number, name in enumerate(names)}
        self._chunks, self._commits = (ChunkWriter(file[name], tail=ends.get(name)) for name in LIST)
        self._digest = first_digest(file.attrs) if tail is None else tail.digest
        self._new: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._growing: dict[tuple[int, ...], tuple[int, int]] = {}  # Offset and size of chunks that are not full.
        self._num_chunks, self._behind_last = len(file["chunks"]), 0
        self._bytes = open(file.filename, "rb", buffering=0)  # noqa: SIM115  # It is open as long as the file.
        for name, dataset in ends.items():
            for chunk in dataset.chunks:
                key = self._numbers[f"/{name}"], int(chunk["row"]), int(chunk["env"])
                self._growing[key] = int(chunk["offset"]), int(chunk["nbytes"])

    def write(self, writer: ChunkWriter, place: tuple[int, ...], data: np.ndarray, mask: int, num_rows: int) -> None:
        """Write the bytes of a chunk, and note it: all bytes of a full one, those of the rows of another one."""
        is_full = num_rows == writer.chunks[0]
        num_checked = len(data) if is_full else len(data) // writer.chunks[0] * num_rows
        key = (self._numbers[writer.name], *(*place[:2], 0)[:2])
        before, nbytes = self._growing.pop(key, (-1, 0))  # A chunk of the same size stays where it is.
        likely = before if nbytes == len(data) else -1, self._file.id.get_filesize(), self._behind_last
        writer.dataset.id.write_direct_chunk(place, data, mask)
        offset = self._find(data, likely)
        if offset < 0 and place[0] // writer.chunks[0] * len(writer.envs) < FEW_CHUNKS and data.any():
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
        self._bytes.close()
