"""One thread owns the file: it alone touches h5py, while the main thread collects.

Blocks go round between the two: the collector fills one while others are written.  If none is free the collector
waits, and that is counted; memory stays bounded and no step is dropped.
"""

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping
from shlex import quote
from typing import TypeVar

import numpy as np

from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.core.layout import Block
from mpi_rollout.errors import Option, RolloutError, StorageError
from mpi_rollout.storage.ownership import free_space
from mpi_rollout.storage.run_file import Ending, Prefix, RunFile
from mpi_rollout.storage.schema import FAULT, INTERVAL, Schema, fault_row, libraries
from mpi_rollout.text import counted, system_words

# What has ended a writer.  Its stack holds HDF5's objects.  If Python freed them before the process ends, they would
# fail once more, and say so.
_kept: list[Exception] = []
# HDF5 1.14 crashes where the threads of two writers call it, under h5py's own lock too.
_one_thread = threading.Lock()
os.register_at_fork(after_in_child=_one_thread._at_fork_reinit)  # type: ignore[attr-defined]
Answer = TypeVar("Answer")


class Writer:
    """Fills a file in a thread of its own.  StorageError from any method, when the thread could not write.

    Parameters
    ----------
    blocks
        To go round; the first row of each is a multiple of its length.
    prefix
        What another file has already of the run, if it is continued or extended.

    Attributes
    ----------
    num_waits
        How often the collector has waited for a free block.
    """

    def __init__(self, file: RunFile, blocks: list[Block], prefix: Prefix | None = None):
        self._file, self.part, self.values = file, file.part, file.values
        self.num_rows = blocks[0].num_rows if blocks else 0
        self.num_waits = 0
        self._error: Exception | None = None
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[Block] = queue.SimpleQueue()
        for block in blocks:
            self._free.put(block)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._ask(file.create if prefix is None else lambda: file.go_on_from(prefix))

    @property
    def num_committed(self) -> int:
        """Steps that a reader finds whatever happens."""
        return self._file.num_committed

    @property
    def worst_commit_s(self) -> float:
        """The longest that a commit has taken."""
        return self._file.worst_commit_s

    @property
    def ended(self) -> np.ndarray:
        """The number of episodes that were written to the end, and the sums of their returns and lengths."""
        return self._file.ended

    def acquire(self) -> Block:
        """Wait for a free block."""
        if self._free.empty():
            self.num_waits += 1
        return self._wait_for(self._free)

    def submit(self, block: Block, num_rows: int) -> None:
        """Write and commit rows, in the thread; see `collector.Sink`."""
        self.check()
        self._work.put(lambda: self._append(block, num_rows))

    def _append(self, block: Block, num_rows: int) -> None:
        self._file.append(block, num_rows)
        if num_rows == block.num_rows:
            self._free.put(block)

    def add_interval(self, time_s: float, env_steps: int, env_steps_per_s: float) -> None:
        """Write a row of /throughput/intervals at the next commit."""
        self._note("throughput/intervals", np.array([(time_s, env_steps, env_steps_per_s)], INTERVAL))

    def add_fault(self, env_index: int, step: int, message: str) -> None:
        """Write a row of /faults at the next commit; call it before the step is submitted."""
        self._note("faults", np.array([fault_row(env_index, step, message)], FAULT))

    def add_resets(self, resets: np.ndarray) -> None:
        """Write rows of /resets at the next commit; call it before the steps before them are submitted."""
        self._note("resets", resets)

    def _note(self, table: str, rows: np.ndarray) -> None:
        self._work.put(lambda: self._file.note(table, rows))

    def drain(self) -> None:
        """Wait until all that was submitted is committed."""
        self._ask(lambda: None)

    def finish(self, ending: Ending) -> str:
        """Commit, close, and if the run is complete check the file and give it its name; return where it is."""
        return self._ask(lambda: self._file.finish(ending))

    def discard(self) -> None:
        """Close and remove the unfinished file."""
        self._ask(self._file.discard)

    def say_warnings(self, spell: Callable[[Option], str]) -> None:
        """Tell the user of wrong values that were stored, once for each kind."""
        if self.values is not None:
            self.values.say_warnings(spell)

    def release(self) -> None:
        """Let other runs write there.  Call it last of all: what they say of themselves then stays."""
        if self._file.lock is not None:
            self._file.lock.release()
            self._file.lock = None

    def _ask(self, task: Callable[[], Answer]) -> Answer:
        """Call `task` in the thread; wait for what it returns."""
        answer: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._work.put(lambda: answer.put(task()))
        return self._wait_for(answer)

    def _wait_for(self, items: "queue.SimpleQueue[Answer]") -> Answer:
        while True:
            self.check()
            try:
                return items.get(timeout=0.2)
            except queue.Empty:
                continue

    def check(self) -> None:
        """Raise what has ended the thread, if something has."""
        if self._error is None:
            return
        if isinstance(self._error, RolloutError):
            raise self._error
        if isinstance(self._error, FileExistsError):
            raise StorageError(
                f"{self._error}; another run writes there or has written; move the file or use another --out"
            )
        way_out = ""
        if self.num_committed:
            recover = f"`python -m mpi_rollout recover {quote(self.part)}` makes a file of them"
            way_out = f"; {recover if self._file.is_recording else 'make room, then the same command continues'}"
        raise StorageError(
            f"cannot write {self.part}: {system_words(self._error)} ({free_space(self.part)}); its first "
            f"{counted(self.num_committed, 'step')} {'is' if self.num_committed == 1 else 'are'} "
            f"committed{way_out}"
        )

    def _run(self) -> None:
        """Do what the main thread asks for, one task after the other, until one fails."""
        while True:
            task = self._work.get()
            try:
                with _one_thread:
                    task()
            except Exception as error:  # HDF5 reports a full disk as RuntimeError.
                self._error = error
                _kept.append(error)
                return


def open_writer(
    config: RolloutConfig,
    attributes: Mapping[str, object],
    blocks: list[Block],
    num_ranks: int,
    prefix: Prefix | None = None,
    replaces: tuple[int, int] | None = None,
) -> Writer:
    """Make the file of a run, and the thread that writes it.

    StorageError if it cannot be made, UsageError if another run writes there.
    """
    attributes = {**attributes, "versions": json.dumps(versions() | libraries())}
    schema = Schema(attributes, config, blocks[0].num_rows if blocks else 0, num_ranks)
    return Writer(RunFile(config.path, schema, replaces), blocks if config.trajectories else [], prefix)
