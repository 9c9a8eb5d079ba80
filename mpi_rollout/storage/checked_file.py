"""A file that may be damaged or hostile, after checks that read its tables and none of its columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import h5py
import numpy as np

from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage.episodes import first_impossible, num_reset_rows_of
from mpi_rollout.storage.file_chunks import FileChunks
from mpi_rollout.storage.schema import EPISODE, FAULT, LIST, RESET, is_recording, is_sparse, leaf_datasets
from mpi_rollout.storage.structure import (
    check_datasets,
    expected_rows,
    num_steps_of,
    opened,
    possible_resets,
    reproducibility_of,
    within,
)
from mpi_rollout.storage.untrusted import Tell, attributes_of, check_room, count, number, object_of, text
from mpi_rollout.storage.values import wrong_in
from mpi_rollout.stored_config import read_config
from mpi_rollout.text import counted


@contextmanager
def checked(path: str, tell: Tell, num_steps: int | None = None, is_rescue: bool = False) -> Iterator["CheckedFile"]:
    """Open a file that may be damaged or hostile, after checks that read its tables and none of its columns.

    What they find is enough to read a column without harm; what is in it `ChunkReader` checks, chunk by chunk.

    Parameters
    ----------
    num_steps
        Only so many of the committed steps count.
    is_rescue
        What can be had without HDF5's index, and /episodes, which follow from the columns, may be damaged.

    Raises
    ------
    DataError
        It is no file of a run, or cannot be read, here or in the `with` block, or its tables do not fit together.
    """
    with opened(path, tell) as (file, note):
        checks = CheckedFile(file, path, note, is_rescue)
        try:
            checks.quickly(num_steps)
            yield checks
        finally:
            if hasattr(checks, "stored"):
                checks.stored.close()


class CheckedFile:
    """A file whose attributes, structure and tables were checked, and what these say.  DataError from all checks.

    Attributes
    ----------
    is_sealed
        No run goes on with the file: all its chunks have checksums, and all its datasets the same number of steps.
    num_committed
        Steps that are committed; `num_steps` of them count.
    stored
        Its chunks; there after `quickly`.
    """

    def __init__(self, file: h5py.File, path: str, tell: Tell, is_rescue: bool = False):
        self.file, self.path, self.tell, self._is_rescue = file, path, tell, is_rescue
        self.root = attributes_of(file)
        self.config = read_config(self.root["config"], path)
        self.is_complete = bool(text(self.root, "finished").strip())
        self.is_sealed = self.is_complete or "recovered" in self.root
        self.has_trajectories = "trajectories" in file
        self.num_steps = self.num_committed = num_steps_of(file) if self.has_trajectories else 0
        self.stored: FileChunks
        self._tables: dict[str, np.ndarray] = {}

    def quickly(self, num_steps: int | None = None) -> None:
        """Make all checks that read no column, of the first `num_steps` steps or all that are committed."""
        self.throughput = attributes_of(object_of(self.file, "throughput", h5py.Group))
        count(self.throughput, "env_steps"), number(self.throughput, "seconds")
        self._check_structure()
        self._check_lengths()
        if num_steps is not None and not 1 <= num_steps <= self.num_committed:
            steps = f"1 to {self.num_committed}, the steps that are committed"
            raise UsageError(f"--num-steps must be {steps}, got {num_steps}")
        if num_steps is not None and num_steps != self.num_steps:
            self.num_steps, self.is_sealed = num_steps, False
        self._check_tables()

    def refuse(self, what: str) -> NoReturn:
        """Say what is wrong with the file."""
        raise DataError(f"{self.path}: {what}")

    def _check_structure(self) -> None:
        """Check that the datasets are those that follow from configuration and spaces."""
        self.tell("the list of its datasets")
        expected = expected_rows(self.root, self.config, "chunks" in self.file)
        check_datasets(leaf_datasets(self.file), expected, self.config.compression)

    def _check_lengths(self) -> None:
        """Check that datasets have a row for each committed step; before the file is sealed they may have more."""
        for name, dataset in self.trajectories().items():
            expected, got = self._num_rows(name), len(dataset)
            if got < expected or (got > expected and self.is_sealed):
                self.refuse(f"trajectories/{name} has {got:,} rows, expected {expected:,}: one for each step")
        num_ranks, num_rows = count(self.root, "num_ranks"), len(self.file["throughput/ranks"])
        if num_rows != num_ranks:
            self.refuse(f"throughput/ranks has {counted(num_rows, 'row')} for {counted(num_ranks, 'rank')}")

    def _num_rows(self, name: str) -> int:
        """Return the number of committed rows of a dataset of /trajectories; 0 before the first commit."""
        is_begun = self.num_steps > 0 or self.is_sealed
        return self.num_steps + (has_last_row(name) and is_begun)

    def trajectories(self) -> dict[str, h5py.Dataset]:
        """Return the columns by their names."""
        return leaf_datasets(self.file["trajectories"]) if self.has_trajectories else {}

    def _check_tables(self) -> None:
        """Check without reading the columns that what counts is there: the list of chunks, its chunks, all tables."""
        self.tell("its list of chunks")
        num_steps, is_rescue = self.num_steps if self._is_rescue else self.num_committed, self._is_rescue
        self.stored = FileChunks(self.file, self.path, num_steps, self.is_sealed, not is_rescue, is_rescue)
        for name, num_rows in self.counting_rows().items():
            self.tell(f"where {name} is")
            if not is_sparse(self.file[name]):  # It has no more rows than the observations, which are not.
                check_room(self.file, name, self.file[name], num_rows, room=0)
            if problem := self.stored.chunks(name).missing(num_rows):
                self.refuse(problem)
            if not name.startswith("trajectories/"):
                self._tables[name] = self.stored.chunks(name).read(0, num_rows)
        if self.has_trajectories and not self._is_rescue:
            self._check_episodes()

    def episode_rows(self) -> np.ndarray:
        """Return the rows of /episodes; before the file is sealed, those of the steps that count."""
        return self.table("episodes", EPISODE) if self.is_sealed else self.committed_episodes()

    def table(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return a table that was read and checked."""
        return self._tables.get(name, np.zeros(0, dtype))

    @property
    def promise(self) -> Reproducibility:
        """What the envs of the file promise."""
        return reproducibility_of(self.file)

    def committed_episodes(self) -> np.ndarray:
        """Return the rows of /episodes that lie in the steps that count."""
        return within(self.table("episodes", EPISODE), self.num_steps)

    def faults(self) -> np.ndarray:
        """Return the rows of /faults of the steps that count."""
        faults = self.table("faults", FAULT)
        return faults[faults["step"] < self.num_steps] if self.has_trajectories else faults

    def resets(self) -> np.ndarray | None:
        """Return the rows of /resets of the steps that count; None where a run took them."""
        return possible_resets(self.root, self.table("resets", RESET), self.num_steps)

    def columns(self) -> dict[str, dict[str, object]]:
        """Return the shape and the dtype of each column, as JSON can hold them."""
        return {
            name: {"shape": list(dataset.shape), "dtype": str(dataset.dtype)}
            for name, dataset in self.trajectories().items()
        }

    def wrong_values(self) -> list[dict[str, str | int]]:
        """Return the wrong values that the columns' attributes record."""
        named = self.trajectories().items()
        return [wrong for name, dataset in named for wrong in wrong_in(name, attributes_of(dataset))]

    def counting_rows(self) -> dict[str, int]:
        """Return the number of committed rows of each dataset."""
        names = leaf_datasets(self.file).keys() - set(LIST)
        # Written at the end of a run, also of one that is not complete.
        if not self.is_complete and self.stored.chunks("throughput/ranks").missing(1):
            names.discard("throughput/ranks")
        if self._is_rescue:
            names.discard("episodes")
        columns = {f"trajectories/{name}": self._num_rows(name) for name in self.trajectories()}
        return {name: columns[name] if name in columns else self.stored.num_rows(name) for name in sorted(names)}

    def _check_episodes(self) -> None:
        """Check that these episodes can be those of the steps that count."""
        to_next = 0 if is_recording(self.root) else num_reset_rows_of(self.root)
        row = first_impossible(self.episode_rows(), self.num_steps, self.config.num_envs, to_next)
        if row is not None:
            what = f"row {row:,} cannot be an episode of {counted(self.num_steps, 'step')}"
            self.refuse(f"episodes: {what}; the table is damaged")
