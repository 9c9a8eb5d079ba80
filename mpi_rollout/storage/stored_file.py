"""One file of a run, opened for reading in this process, and opened again where that is needed; see `stored_run`.

A run may be writing it.  HDF5 keeps what it has read of the file's index, so that it does not see later steps: they are
there after `refresh`.  An error amid reading may come from a write at that moment: the file is then opened again.
"""

import atexit
import os
import weakref
from collections.abc import Callable
from typing import TypeVar

import h5py
import numpy as np

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.chunk_reader import ChunkReader, one_thread
from mpi_rollout.storage.file_chunks import FileChunks
from mpi_rollout.storage.shard_files import name_now
from mpi_rollout.storage.tail import running_table
from mpi_rollout.storage.untrusted import open_unmarked, steadily
from mpi_rollout.text import first_line

ATTEMPTS = 3
Content = TypeVar("Content")
_sources: "weakref.WeakSet[StoredFile]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all files: HDF5 would call Python to do it, when there is no interpreter any more."""
    for source in list(_sources):
        source.close()


class StoredFile:
    """A file, its attributes, and the rows of its columns that are committed.

    DataError from the constructor if it is no file of a run, or is damaged.

    Attributes
    ----------
    leaves
        The dtype and shape for one env of every column, by its path below /trajectories.
    num_committed, num_steps
        Committed steps, when the file was last looked at, and those of them that count.
    starts
        How many starts of the run have written it.
    reproducibility
        What the envs promise about random numbers.
    resets
        The rows of /resets; None where a run took the steps.
    episodes
        The rows of /episodes of committed steps, also of those that the run's end has cut.
    faults
        The rows of /faults of committed steps.
    last_digest, wrong_values
        Of a shard: the digest of its last commit, and the wrong values that its attributes record.
    """

    def __init__(self, path: str, is_rescue: bool = False):
        self.path, self._is_rescue = path, is_rescue
        self._file: h5py.File | None = None
        self._stored: FileChunks
        self._pid = 0
        self.look()

    def look(self) -> None:
        """Read what is committed now."""
        self.close()
        steadily(self.locate(), self._look)

    def locate(self) -> str:
        """Return the path that the file has now."""
        self.path = name_now(self.path)
        return self.path

    def _look(self) -> None:
        with checked(self.locate(), lambda doing: None, is_rescue=self._is_rescue) as checks:
            self.attributes, self.config, self.is_complete = checks.root, checks.config, checks.is_complete
            self.is_sealed, self.num_steps, self.reproducibility = checks.is_sealed, checks.num_steps, checks.promise
            self.num_committed, self.starts = checks.num_steps, checks.starts
            self.episodes, self.resets, self.faults = checks.committed_episodes(), checks.resets(), checks.faults()
            if "run" in checks.root:
                self.last_digest, self.wrong_values = checks.last_digest(), checks.wrong_values()
            datasets = checks.trajectories()
            self.leaves = {
                name: Leaf(tuple(name.split("/")), dataset.dtype, dataset.shape[2:])
                for name, dataset in datasets.items()
            }
            self.chunks = {name: dataset.chunks for name, dataset in datasets.items()}

    def limit_to(self, num_steps: int) -> None:
        """Let only the first steps count, where there are more."""
        if num_steps < self.num_steps:
            self.close()
            self.num_steps, self.is_sealed = num_steps, False
            self.episodes = self.episodes[self.episodes["start"] + self.episodes["length"] <= num_steps]
            self.faults = self.faults[self.faults["step"] < num_steps]

    @property
    def _chunks(self) -> FileChunks:
        """What the open file has.  A forked process opens its own: places in files are shared otherwise."""
        with one_thread:
            if self._file is None or self._pid != os.getpid():
                self._open()
        return self._stored

    def _open(self) -> None:
        file = open_unmarked(self.locate())
        try:
            self._stored = FileChunks(
                file, self.path, self.num_steps, self.is_sealed, not self._is_rescue, is_at_least=True
            )
        except BaseException:
            file.close()
            raise
        self._file, self._pid = file, os.getpid()
        _sources.add(self)

    def stored(self, name: str) -> ChunkReader:
        """Return the chunks of a column."""
        return self._chunks.chunks(f"trajectories/{name}")

    def __getstate__(self) -> dict[str, object]:
        """Return the state of a copy in another process, which opens the file itself."""
        return self.__dict__ | {"_file": None, "_stored": None}

    def close(self) -> None:
        """Close the file, if it is open; it is opened again when it is needed."""
        if self._file is not None and self._pid == os.getpid():
            self._stored.close()
            self._file.close()
        self._file = None

    def read(self, name: str, rows: slice | np.ndarray, envs: slice, into: np.ndarray | None = None) -> np.ndarray:
        """Read as `StoredRun.read` does; `into` is for a range of rows."""
        if isinstance(rows, slice):
            return self.attempt(lambda: self.stored(name).read(rows.start, rows.stop, envs, into), name)
        return self.attempt(lambda: self.stored(name).pick(rows, envs), name)

    def unfinished(self) -> np.ndarray:
        """Return the rows of the episodes that the end of the data cuts: neither terminated nor truncated.

        A killed run has not written them.  Then they follow from the steps behind the last ends; in a file with
        /resets, from all steps.
        """
        is_cut = ~(self.episodes["terminated"] | self.episodes["truncated"])
        if self.is_sealed or is_cut.any():
            return np.asarray(self.episodes[is_cut])
        return self.attempt(self._computed_unfinished, "rewards")

    def _computed_unfinished(self) -> np.ndarray:
        about = self.config, self.attributes, self._chunks, self.episodes, self.num_steps
        return running_table(*about, self.resets).unfinished(self.num_steps)

    def attempt(self, read: Callable[[], Content], name: str) -> Content:
        """Call what reads a column.  DataError if it fails, in a file that is written more than once."""
        for attempt in range(1 if self.is_sealed else ATTEMPTS):
            try:
                return read()
            except (OSError, RuntimeError, KeyError, ContentError) as error:
                failure: Exception = error
                if attempt + 1 < ATTEMPTS:
                    self.close()
        if isinstance(failure, ContentError):
            raise DataError(f"{self.path}: {failure}") from failure
        raise DataError(
            f"{self.path}: cannot read trajectories/{name}: {first_line(failure)}; "
            f"`python -m mpi_rollout verify` says what is damaged"
        ) from failure
