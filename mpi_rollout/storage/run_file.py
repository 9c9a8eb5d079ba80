"""The file of a run while it is written: made, filled, committed, closed, and given its name.

A commit is: data, flush, then `num_steps`, flush, in SWMR mode.  HDF5 then keeps the file readable at every moment,
so what `num_steps` counts is there even after a SIGKILL; see `chunks` for what that takes of the data.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.layout import Block
from mpi_rollout.errors import StorageError
from mpi_rollout.process.console import take_free_descriptors
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.episodes import EpisodeTable, make_table
from mpi_rollout.storage.hdf5_format import LIBVER
from mpi_rollout.storage.new_files import writing
from mpi_rollout.storage.ownership import Lock, give_name, identity, make_locked, put_in_free_place, refusal
from mpi_rollout.storage.recovery import copy_prefix
from mpi_rollout.storage.schema import (
    INTERVALS_PER_CHUNK,
    LIMIT,
    Ending,
    Schema,
    is_recording,
    made_with,
    padded,
    rank_rows,
)
from mpi_rollout.storage.tail import Tail, can_go_on, read_tail
from mpi_rollout.storage.values import ValueChecks
from mpi_rollout.storage.verification import check_index


@dataclass(frozen=True)
class Prefix:
    """The first steps of a run that is continued or extended.

    `lost` are the envs whose running episodes cannot be continued, and the first step that is not what it was: they end
    here, truncated and faulted.  `check_stop` raises where what may take long is to be stopped; the writer calls it.
    """

    num_steps: int
    source: str
    lost: Mapping[int, int] = field(default_factory=dict)
    check_stop: Callable[[], None] = lambda: None


class RunFile:
    """The file at `<path>.part`; the name `path` appears when it is complete and checked.  For one thread alone.

    Parameters
    ----------
    attributes, num_rows
        Those of the root group, and the rows of a block.
    prefix
        What another file has already of the run, if it is continued or extended.
    replaces
        The `ownership.identity` of the complete file at `path` that the run extends.
    """

    def __init__(
        self,
        config: RolloutConfig,
        attributes: Mapping[str, object],
        num_rows: int,
        prefix: Prefix | None = None,
        replaces: tuple[int, int] | None = None,
    ):
        attributes = {**attributes, "versions": json.dumps(made_with())}
        self._schema = Schema(attributes, num_rows)
        self.path, self.part, self._prefix, self._replaces = config.path, config.path + ".part", prefix, replaces
        self.is_recording = is_recording(attributes)
        self._episodes = make_table(config, attributes) if config.trajectories else None
        self.lock: Lock | None = None
        self.num_committed = self._num_rows_seen = 0  # Steps that a reader finds whatever happens.
        self.worst_commit_s = 0.0  # The longest that a commit has taken.
        self.ended = np.zeros(3)  # Of this start's episodes: the number, the sums of returns and of lengths.
        self._tail: Tail | None = None  # Of the file of an earlier start, if this one goes on in it.
        self._notes: dict[str, list[np.ndarray]] = {}  # Rows of tables, for the next commit.

    @property
    def values(self) -> ValueChecks:
        """The counts of wrong values, once the file is made."""
        return self._datasets.values if self._tail is None else self._tail.values

    @cached_property
    def _datasets(self) -> FileDatasets:
        """The open file.  That of an earlier start is opened for the first write: a kill before leaves it as it was."""
        take_free_descriptors()
        file = h5py.File(self.part, "r+", libver=LIBVER, locking=False)
        file.swmr_mode = True
        datasets = FileDatasets(file, self._tail)
        if self._tail is not None:
            datasets.note_starts(self._tail.starts + 1)
        return datasets

    def begin(self) -> None:
        """Make the file; what an earlier start has left goes on in the same file if that can be, else in a copy."""
        if (prefix := self._prefix) is None:
            self._make(self.part + ".new")
            put_in_free_place(self.part + ".new", self.part)  # It has all its objects.
            return
        self.num_committed = self._num_rows_seen = prefix.num_steps
        if prefix.source != self.part or prefix.lost or not self._append_to_part(prefix.num_steps):
            self._begin_copy(prefix)

    def _append_to_part(self, num_steps: int) -> bool:
        """Read the end of an earlier start's file, if this one can append to it.  The caller has locked it."""
        with checked(self.part, lambda doing: None) as source:
            if not can_go_on(source, self._schema, num_steps):
                return False
            self._tail = read_tail(source)
        self._episodes = self._tail.episodes
        return True

    def _begin_copy(self, prefix: Prefix) -> None:
        """Make a new file of what there is, checked on the way, which is called `.part` when it has all."""
        new = self.part + ".new"
        lock = self._make(new)
        with _whole_or_gone(new):
            reading = checked(prefix.source, lambda _: prefix.check_stop(), prefix.num_steps, is_rescue=True)
            try:  # Its table of episodes is not read again, but computed.
                with reading as source, writing(new):
                    self._episodes = copy_prefix(source, self._datasets, prefix.lost)
                    self._datasets.note_starts(source.starts + 1)
            except StorageError as error:  # `checked` would blame the source for the error itself.
                raise (error.__cause__ or error) from None
            self._commit(prefix.num_steps, self._episodes)
            self.ended = np.zeros(3)
            lock.sync()
        if prefix.source == self.part:
            os.replace(new, self.part)
        else:
            put_in_free_place(new, self.part)

    def _make(self, path: str) -> Lock:
        """Make the file of a run that nobody else writes."""
        take_free_descriptors()
        self.lock = make_locked(path)
        with _whole_or_gone(path):
            # Another run may have been here between this run's look at the place and the lock.
            if identity(self.path) not in (None, self._replaces):
                raise refusal(self.path)
            self._datasets = FileDatasets(self._schema.create(path, is_locked=True))
        return self.lock

    def append(self, block: Block, num_rows: int) -> None:
        """Write and commit the rows of a block that the file does not have yet; only with trajectories."""
        assert self._episodes is not None
        start = max(self._num_rows_seen - block.start, 0)
        is_full = num_rows == block.num_rows
        for name, array in block.named.items():
            self._datasets.append(name, array, block.start, num_rows + (has_last_row(name) and not is_full))
        if num_rows > start:
            self._episodes.add(block, start, num_rows)
        self._num_rows_seen = block.start + num_rows
        self._commit(self._num_rows_seen - is_full, self._episodes)

    def note(self, table: str, rows: np.ndarray) -> None:
        """Keep rows of a table for the next commit; without steps to commit, until they fill a chunk of intervals."""
        self._notes.setdefault(table, []).append(rows)
        if self._episodes is None:
            if len(self._notes[table]) == INTERVALS_PER_CHUNK:
                self._write_notes()
                self._datasets.file.flush()
        elif table == "faults":
            self._episodes.note_faults(rows)
        elif table == "resets":
            self._episodes.note_resets(rows)

    def _commit(self, num_steps: int, episodes: EpisodeTable) -> None:
        """Make the first `num_steps` steps and the observations after them count."""
        start = perf_counter()
        rows = episodes.take(num_steps)
        self._datasets.tables["episodes"].append(rows)
        new = np.array([len(rows), rows["return"].sum(), rows["length"].sum()])
        self.ended = self.ended + new  # Not in place: another thread reads it.
        self._write_notes()
        self._datasets.commit(num_steps)
        self.num_committed = num_steps
        self.worst_commit_s = max(self.worst_commit_s, perf_counter() - start)

    def _write_notes(self) -> None:
        for name, rows in self._notes.items():
            self._datasets.tables[name].append(np.concatenate(rows))
        self._notes.clear()

    def finish(self, ending: Ending) -> str:
        """Commit, close, and if the run is complete check the file and give it its name; return where it is."""
        tables = self._datasets.tables
        if self._episodes is not None and ending.complete:  # Otherwise the run may go on.
            tables["episodes"].append(self._episodes.unfinished(self.num_committed))
            self.values.warn_of_silence()
        self._write_notes()
        tables["throughput/limit"].append(np.array(ending.limit, LIMIT))
        totals = ending.env_steps, ending.seconds, rank_rows(ending.ranks)
        self._datasets.end(self.num_committed, *totals, is_last=ending.complete)
        if ending.complete:
            for name, words in (("finished", ending.finished), ("advice", ending.advice)):
                self._datasets.file.attrs.modify(name, padded(name, words))
        self._datasets.close()
        if not ending.complete:
            return self.part
        check_index(self.part)
        if "run" in self._schema.attributes:  # A shard gets its name with all others of its set.
            return self.part
        give_name(self.part, self.path, self._replaces)
        return self.path

    def discard(self) -> None:
        self._datasets.close()
        os.unlink(self.part)

    def release(self) -> None:
        """Let other runs write there."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None


@contextmanager
def _whole_or_gone(path: str) -> Iterator[None]:
    """Remove a new file that does not get all it needs: on a full disk it would take the last room."""
    try:
        yield
    except Exception:
        with suppress(OSError):
            os.unlink(path)
        raise
