"""The chunks of all datasets of a file, by the file's own list of them, which `chunks.ChunkList` writes."""

import h5py
import numpy as np

from mpi_rollout.errors import ContentError
from mpi_rollout.storage.chunk_reader import ChunkReader
from mpi_rollout.storage.schema import CHUNK, first_digest, next_digest
from mpi_rollout.storage.untrusted import attributes_of, parsed, table_of


class FileChunks:
    """The chunks of all datasets of a file in its first `num_steps` steps, as its own list says.

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
        self._listed = listed_chunks(file, num_steps, is_sealed, is_at_least)
        self._bytes = open(path, "rb", buffering=0)  # noqa: SIM115  # It is open as long as the file.
        self._chunks: dict[str, ChunkReader] = {}

    def close(self) -> None:
        """Close the descriptor."""
        self._bytes.close()

    def chunks(self, name: str) -> ChunkReader:
        """Return the chunks of a dataset."""
        if name not in self._chunks:
            listed = self._listed.get(name, np.zeros(0, CHUNK))
            flags = self._is_sealed, self._needs_index
            self._chunks[name] = ChunkReader(self._file[name], self._bytes.fileno(), listed, *flags)
        return self._chunks[name]

    def num_rows(self, name: str) -> int:
        """Return the number of rows of a table that count: before a file is sealed, those that the list has."""
        num_rows = len(self._file[name])
        return num_rows if self._is_sealed else min(num_rows, self.chunks(name).num_listed_rows)


def listed_chunks(file: h5py.File, num_steps: int, is_sealed: bool, is_at_least: bool = False) -> dict[str, np.ndarray]:
    """Return the chunks listed by the last commit of `num_steps` steps, by dataset; ContentError if damaged.

    With `is_at_least`, a commit of more steps will do, of those before the first one that is damaged.
    """
    names = parsed(attributes_of(file["chunks"]), "datasets", list)
    chunks, commits = table_of(file, "chunks"), table_of(file, "commits")
    whole = commits[: _num_whole(file, chunks, commits)]
    considered = whole if is_at_least else commits
    counts = considered["num_steps"] >= num_steps if is_at_least else considered["num_steps"] == num_steps
    counting = np.flatnonzero(counts & (considered["num_chunks"] <= len(chunks)))
    if not len(counting):
        if not num_steps and not is_sealed:
            return {}
        what = f"its list of chunks has no commit of {num_steps:,} steps"
        most = int(whole["num_steps"].max(initial=0))
        raise ContentError(what + (f"; recover the first {most:,} with --num-steps {most}" if most else ""))
    # A writer, killed or at work, may have left commits whose chunks are not listed yet.
    others = commits["num_chunks"][len(whole) :]
    if len(others) and not is_at_least and (is_sealed or (others <= len(chunks)).any()):
        raise ContentError("its list of chunks is not what was written: the digest does not fit")
    chunks = chunks[: considered["num_chunks"][counting[-1]]]
    is_possible = (chunks["row"] >= 0) & (chunks["env"] >= 0) & (chunks["num_checked"] >= 0)
    is_possible &= chunks["num_checked"] <= chunks["nbytes"]
    if not is_possible.all():
        raise ContentError(f"its list of chunks is damaged in row {is_possible.argmin():,}")
    return {str(name): chunks[chunks["dataset"] == number] for number, name in enumerate(names)}


def _num_whole(file: h5py.File, chunks: np.ndarray, commits: np.ndarray) -> int:
    """Return the number of commits that are as they were written, before the first one that is not."""
    digest, start = first_digest(file.attrs), 0
    for number, commit in enumerate(commits):
        stop = int(commit["num_chunks"])
        digest = next_digest(digest, int(commit["num_steps"]), chunks[start:stop])
        if not start <= stop <= len(chunks) or digest != commit["digest"].tobytes():
            return number
        start = stop
    return len(commits)
