"""One file of a run, opened for reading in this process, and opened again where that is needed.

A run may be writing it.  HDF5 keeps what it has read of the file's index, so that it does not see later steps: they are
there after `refresh`.  An error amid reading may come from a write at that moment: the file is then opened again.
"""

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import h5py
import numpy as np

from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import DataError, first_line
from mpi_rollout.storage.objects import open_unmarked
from mpi_rollout.storage.reader import committed_episodes, leaf_datasets, opened, steadily
from mpi_rollout.storage.verification import Verification

ATTEMPTS = 3
Content = TypeVar("Content")
_sources: "weakref.WeakSet[Source]" = weakref.WeakSet()


def has_last_row(name: str) -> bool:
    """Tell whether a column has a row more than there are steps: what came after the last one."""
    return name.startswith(("observations", "infos"))


@atexit.register
def _close_all() -> None:
    """Close all files: HDF5 would call Python to do it, when there is no interpreter any more."""
    for source in list(_sources):
        source.close()


class Source:
    """A file, its attributes, and the rows of its columns that are committed.

    Attributes
    ----------
    attributes
        Of the root group.
    leaves
        The dtype and shape for one env of every column, by its path below /trajectories.
    num_steps
        Committed steps, when the file was last looked at.
    episodes
        The rows of /episodes of committed steps, also of those that the run's end has cut.

    Raises
    ------
    DataError
        From the constructor: it is no file of a run, or has no trajectories, or is damaged.
    """

    def __init__(self, path: str):
        self.path = path
        self._file: h5py.File | None = None
        self._pid = 0
        self.look()

    def look(self) -> None:
        """Read what is committed now."""
        self.close()
        steadily(self.locate(), self._look)

    def locate(self) -> str:
        """Return the name that the file has now: a run takes the `.part` away when it is complete."""
        if self.path.endswith(".part") and not os.path.lexists(self.path):
            name = self.path.removesuffix(".part")
            self.path = name if os.path.lexists(name) else self.path
        return self.path

    def _look(self) -> None:
        with opened(self.path, lambda doing: None) as (file, note):
            checks = Verification(file, self.path, note)
            if not checks.has_trajectories:
                raise DataError(f"{self.path} has no trajectories: its run measured throughput only")
            checks.attributes()
            checks.structure()
            checks.lengths()
            self.attributes, self.config, self.is_complete = checks.root, checks.config, checks.is_complete
            self.is_sealed, self.num_steps = checks.is_sealed, checks.num_steps
            note("its episodes")
            self.episodes = self._checked(committed_episodes(file, self.num_steps))
            datasets = leaf_datasets(file["trajectories"])
            self.leaves = {
                name: Leaf(tuple(name.split("/")), dataset.dtype, dataset.shape[2:])
                for name, dataset in datasets.items()
            }
            self.chunks = {name: dataset.chunks for name, dataset in datasets.items()}

    def _checked(self, rows: np.ndarray) -> np.ndarray:
        """Refuse episodes that are not in the file: who follows them would read something else."""
        is_inside = self.has(rows)
        if not is_inside.all():
            raise DataError(f"{self.path}: episodes, row {is_inside.argmin():,}: its steps are not in the file")
        return rows

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Tell of episodes whether their steps are in the file."""
        is_inside = (rows["env_index"] >= 0) & (rows["env_index"] < self.config.num_envs) & (rows["start"] >= 0)
        return np.asarray(is_inside & (rows["length"] >= 0) & (rows["start"] + rows["length"] <= self.num_steps))

    @property
    def file(self) -> h5py.File:
        """The open file; a process that was forked opens its own, since places in files are shared otherwise."""
        if self._file is None or self._pid != os.getpid():
            self._file, self._pid = open_unmarked(self.locate()), os.getpid()
            _sources.add(self)
        return self._file

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs: it opens the file itself."""
        return self.__dict__ | {"_file": None, "path": os.path.abspath(self.path)}

    def close(self) -> None:
        """Close the file, if it is open; it is opened again when it is needed."""
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._file = None

    def num_rows(self, name: str) -> int:
        """Return how many committed rows a column has: before the first step, none."""
        return self.num_steps + has_last_row(name) if self.num_steps else 0

    def read(self, name: str, selection: Any) -> np.ndarray:
        """Read some elements of a column; HDF5 reads the chunks that have them, and compares their checksums."""
        return self.attempt(lambda: np.asarray(self.file["trajectories"][name][selection]), name)

    def read_into(self, name: str, rows: slice, envs: slice, array: np.ndarray) -> None:
        """Read rows of some envs into the first rows of an array."""
        into = np.s_[: rows.stop - rows.start]
        self.attempt(lambda: self.file["trajectories"][name].read_direct(array, np.s_[rows, envs], into), name)

    def attempt(self, read: Callable[[], Content], name: str) -> Content:
        """Call what reads a column.  DataError if it fails, in a file that is written more than once."""
        for attempt in range(1 if self.is_sealed else ATTEMPTS):
            try:
                return read()
            except (OSError, RuntimeError, KeyError) as error:
                failure = error
                if attempt + 1 < ATTEMPTS:
                    self.close()
        raise DataError(
            f"{self.path}: cannot read trajectories/{name}: {first_line(failure)}; "
            f"`python -m mpi_rollout verify` says what is damaged"
        ) from failure
