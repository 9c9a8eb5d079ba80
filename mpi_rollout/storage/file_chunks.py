"""The chunks of all datasets of a file, by the file's own list of them."""

import h5py
import numpy as np

from mpi_rollout.storage.chunk_list import listed_chunks
from mpi_rollout.storage.chunk_reader import ChunkReader
from mpi_rollout.storage.schema import CHUNK


class FileChunks:
    """The chunks of all datasets of a file in its first `num_steps` steps, as its own list says, where it has one.

    ContentError if the list is damaged.
    """

    def __init__(
        self,
        file: h5py.File,
        path: str,
        num_steps: int,
        is_sealed: bool,
        needs_index: bool = True,
        is_at_least: bool = False,
    ):
        self._file, self._is_sealed, self._needs_index = file, is_sealed, needs_index
        self.has_list = "chunks" in file
        self._listed = listed_chunks(file, num_steps, is_sealed, is_at_least) if self.has_list else {}
        self._bytes = open(path, "rb", buffering=0)  # noqa: SIM115  # It is open as long as the file.
        self._chunks: dict[str, ChunkReader] = {}

    def close(self) -> None:
        """Close the descriptor."""
        self._bytes.close()

    def chunks(self, name: str) -> ChunkReader:
        """Return the chunks of a dataset."""
        if name not in self._chunks:
            listed = self._listed.get(name, np.zeros(0, CHUNK)) if self.has_list else None
            flags = self._is_sealed, self._needs_index
            self._chunks[name] = ChunkReader(self._file[name], self._bytes.fileno(), listed, *flags)
        return self._chunks[name]

    def num_rows(self, name: str) -> int:
        """Return the number of rows of a table that count: before a file is sealed, those that the list has."""
        num_rows = len(self._file[name])
        return min(num_rows, self.chunks(name).num_listed_rows) if self.has_list and not self._is_sealed else num_rows
