"""One thread owns the file: it alone touches h5py, while the main thread collects.

Blocks go round between the two: the collector fills one while others are written.  If none is free the collector
waits, and that is counted; memory stays bounded and no step is dropped.

A commit is: data, flush, then `num_steps`, flush, in SWMR mode.  HDF5 then keeps the file readable at every moment,
so what `num_steps` counts is there even after a SIGKILL; see `chunks` for what that takes of the data.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from mpi_rollout.core.layout import Block
from mpi_rollout.errors import RolloutError, StorageError, counted, system_words
from mpi_rollout.process.console import take_free_descriptors
from mpi_rollout.storage.chunks import ChunkWriter, TableWriter, fill
from mpi_rollout.storage.episodes import EpisodeTable
from mpi_rollout.storage.ownership import Lock, free_space, give_name, identity, make_locked, put_in_free_place, refusal
from mpi_rollout.storage.past import copy_prefix
from mpi_rollout.storage.schema import FAULT, INTERVAL, LIMIT, Schema, fault_row, rank_rows
from mpi_rollout.storage.unmarked import open_unmarked
from mpi_rollout.storage.values import ValueChecks
from mpi_rollout.storage.verification import check_chunks

# What has ended a writer.  Its stack holds the objects of HDF5, which would fail once more, and say so, if Python
# freed them before the process leaves.
_kept: list[Exception] = []


@dataclass(frozen=True)
class Ending:
    """What is known only at the end of a run, for the file."""

    finished: str
    env_steps: int
    seconds: float
    ranks: list[dict[str, Any]]
    limit: list[tuple[float, float]]
    complete: bool


@dataclass(frozen=True)
class Prefix:
    """What a file has already of a run that is continued, or extended.

    Parameters
    ----------
    source
        That file: the unfinished one, or the complete one.
    lost
        Envs whose running episodes cannot be continued, and the first step that is not what it was: they end here,
        truncated and faulted.
    """

    num_steps: int
    source: str
    lost: Mapping[int, int] = field(default_factory=dict)


class Writer:
    """Writes blocks to `<path>.part`; the name `path` appears when the file is complete and checked.

    Parameters
    ----------
    blocks
        To go round; the first row of each is a multiple of its length.
    past
        What the unfinished file at `<path>.part` has already, if the run is continued.
    replaces
        The complete file at `path` that the run extends, see `ownership.identity`.

    Attributes
    ----------
    num_committed
        Steps that a reader will find whatever happens.
    worst_commit_s
        The longest that a commit has taken.
    values
        Counts the wrong values in what is written; None without trajectories.

    Raises
    ------
    UsageError
        From the constructor, when another run writes there.
    StorageError
        From any method, when the thread could not write.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        blocks: list[Block],
        episodes: EpisodeTable | None,
        past: Prefix | None = None,
        replaces: tuple[int, int] | None = None,
    ):
        self.path, self.part, self._replaces = path, path + ".part", replaces
        self.num_rows = blocks[0].num_rows if blocks else 0
        self.num_committed = 0 if past is None else past.num_steps
        self.worst_commit_s = 0.0
        self.num_waits = 0
        self._error: Exception | None = None
        self._lock: Lock | None = None
        self._schema, self._episodes = schema, episodes
        self.values = ValueChecks(schema.attributes) if schema.named else None
        self._intervals: list[tuple[float, int, float]] = []
        self._faults: list[tuple[int, int, bytes]] = []
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        for block in blocks:
            self._free.put(block)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._ask(self._create if past is None else lambda: self._continue(past))

    def acquire(self) -> Block:
        """Wait for a free block."""
        if self._free.empty():
            self.num_waits += 1
        while True:
            self._raise_error()
            try:
                return self._free.get(timeout=0.2)
            except queue.Empty:
                continue

    def submit(self, block: Block, num_rows: int) -> None:
        """Have rows written and committed; see `collector.Sink`."""
        self._raise_error()
        self._work.put((self._append, (block, num_rows)))

    def add_interval(self, time_s: float, env_steps: int, env_steps_per_s: float) -> None:
        """Have a row of /throughput/intervals written at the next commit."""
        self._work.put((self._intervals.append, ((time_s, env_steps, env_steps_per_s),)))

    def add_fault(self, env_index: int, step: int, message: str) -> None:
        """Have a row of /faults written at the next commit; before the step is submitted."""
        self._work.put((self._take_fault, (env_index, step, message)))

    def drain(self) -> None:
        """Wait until all that was submitted is committed."""
        self._ask(lambda: None)

    def finish(self, ending: Ending) -> str:
        """Commit, close, and if the run is complete check the file and give it its name; return where it is."""
        return self._ask(lambda: self._finish(ending))

    def discard(self) -> None:
        """Close and remove the unfinished file."""
        self._ask(self._discard)

    def release(self) -> None:
        """Let other runs write there.  Last of all: what they say of themselves then stands."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _ask(self, task: Callable[[], Any]) -> Any:
        answer: queue.SimpleQueue = queue.SimpleQueue()
        self._work.put((lambda: answer.put(task()), ()))
        while True:
            self._raise_error()
            try:
                return answer.get(timeout=0.2)
            except queue.Empty:
                continue

    def _raise_error(self) -> None:
        if self._error is None:
            return
        if isinstance(self._error, RolloutError):
            raise self._error
        if isinstance(self._error, FileExistsError):
            raise StorageError(
                f"{self._error}; another run writes there or has written; move the file or use another --out"
            )
        has_steps = self.num_committed > 0
        raise StorageError(
            f"cannot write {self.part}: {system_words(self._error)} ({free_space(self.path)}); its first "
            f"{counted(self.num_committed, 'step')} {'is' if self.num_committed == 1 else 'are'} "
            f"committed{'; make room, then the same command continues' * has_steps}"
        )

    # What follows runs in the writer's thread only.

    def _run(self) -> None:
        while True:
            task, arguments = self._work.get()
            try:
                task(*arguments)
            except Exception as error:  # HDF5 reports a full disk as RuntimeError.
                self._error = error
                _kept.append(error)
                return

    def _create(self) -> None:
        """Begin a new file, which gets its name when it has all its objects."""
        self._make(self.part + ".new")
        put_in_free_place(self.part + ".new", self.part)
        self._open_columns()

    def _make(self, path: str) -> None:
        """Make the file of a run that nobody else writes."""
        take_free_descriptors()
        self._lock = make_locked(path)
        with _whole_or_gone(path):
            # Another run may have been here between this run's look at the place and the lock.
            if identity(self.path) not in (None, self._replaces):
                raise refusal(self.path)
            self._file = self._schema.create(path, is_locked=True)
        self._num_rows_seen = 0

    def _open_columns(self) -> None:
        self._columns = {name: ChunkWriter(self._file["trajectories"][name]) for name in self._schema.named}
        names = ["episodes"] * bool(self._columns) + ["faults", "throughput/intervals", "throughput/limit"]
        self._tables = {name: TableWriter(self._file[name]) for name in names}

    def _continue(self, past: Prefix) -> None:
        """Begin with what an earlier start has left: a new file is made of it, called `.part` when it has all."""
        self._make(self.part + ".new")
        with _whole_or_gone(self.part + ".new"):
            with open_unmarked(past.source) as source:
                self._episodes = copy_prefix(source, self._file, past.num_steps, lost=past.lost, values=self.values)
            self._num_rows_seen = past.num_steps
            self._open_columns()
            self._commit(past.num_steps)
            self._lock.sync()
        if past.source == self.part:
            os.replace(self.part + ".new", self.part)
        else:
            put_in_free_place(self.part + ".new", self.part)

    def _append(self, block: Block, num_rows: int) -> None:
        start = max(self._num_rows_seen - block.start, 0)
        is_full, has_more = num_rows == block.num_rows, False
        for name, column in self._columns.items():
            stop = num_rows + (name.startswith("observations") and not is_full)
            column.append(block.named[name], block.start, stop)
            has_more |= self.values.append(name, block.named[name], block.start, stop)
        if has_more:
            self.values.write(self._file["trajectories"])
        if num_rows > start:
            self._episodes.add(block, start, num_rows)
        self._num_rows_seen = block.start + num_rows
        self._commit(self._num_rows_seen - is_full)
        if is_full:
            self._free.put(block)

    def _take_fault(self, env_index: int, step: int, message: str) -> None:
        self._faults.append(fault_row(env_index, step, message))
        if self._episodes is not None:
            self._episodes.note_fault(env_index, step)

    def _commit(self, num_steps: int) -> None:
        """Make the first `num_steps` steps and the observations after them count."""
        start = perf_counter()
        self._tables["episodes"].append(self._episodes.take(num_steps))
        self._write_notes()
        self._file.flush()
        self._file["trajectories"].attrs.modify("num_steps", np.int64(num_steps))
        self._file.flush()
        self.num_committed = num_steps
        self.worst_commit_s = max(self.worst_commit_s, perf_counter() - start)

    def _write_notes(self) -> None:
        self._tables["throughput/intervals"].append(np.array(self._intervals, INTERVAL))
        self._tables["faults"].append(np.array(self._faults, FAULT))
        self._intervals.clear()
        self._faults.clear()

    def _finish(self, ending: Ending) -> str:
        if self._columns:
            self._tables["episodes"].append(self._episodes.unfinished(self.num_committed))
        throughput = self._file["throughput"]
        self._write_notes()
        self._tables["throughput/limit"].append(np.array(ending.limit, LIMIT))
        fill(throughput["ranks"], rank_rows(ending.ranks))
        throughput.attrs.modify("env_steps", np.int64(ending.env_steps))
        throughput.attrs.modify("seconds", np.float64(ending.seconds))
        for each in (*self._columns.values(), *self._tables.values()):
            each.seal()
        self._file.flush()
        if ending.complete:
            self._file.attrs.modify("finished", np.bytes_(ending.finished.ljust(32).encode()))
        self._file.close()
        if not ending.complete:
            return self.part
        check_chunks(self.part)
        give_name(self.part, self.path, self._replaces)
        return self.path

    def _discard(self) -> None:
        self._file.close()
        os.unlink(self.part)


@contextmanager
def _whole_or_gone(path: str) -> Iterator[None]:
    """Remove a file of this process that does not get all it needs here: on a full disk it would take the last room."""
    try:
        yield
    except Exception:
        with suppress(OSError):
            os.unlink(path)
        raise
