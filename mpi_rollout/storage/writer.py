"""Who writes a run's file, and when: the collector itself between two fragments, or a thread where that takes long.

A thread costs envs in Python five times its own work: they release the GIL at each reset, the thread takes it, and they
wait.  So the collector writes by itself, as long as that takes a small share of its time.  Where it takes more (a slow
disk, compression, envs that step millions of times a second), a thread writes while the collector goes on.

Blocks go round between the two.  If none is free the collector waits, and that is counted; memory stays bounded and no
step is dropped.
"""

import os
import queue
import threading
from collections.abc import Callable
from shlex import quote
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mpi_rollout.core.layout import Block
from mpi_rollout.errors import RolloutError, StorageError
from mpi_rollout.storage.ownership import free_space
from mpi_rollout.storage.run_file import RunFile
from mpi_rollout.storage.schema import FAULT, INTERVAL, Ending, fault_row
from mpi_rollout.text import counted, system_words

if TYPE_CHECKING:
    from mpi_rollout.storage.team_files import TeamFiles

# What has ended a writer.  Its stack holds HDF5's objects.  If Python freed them before the process ends, they would
# fail once more, and say so.
_kept: list[BaseException] = []
# HDF5 1.14 crashes where the threads of two writers call it, under h5py's own lock too.
_one_thread = threading.Lock()
os.register_at_fork(after_in_child=_one_thread._at_fork_reinit)  # type: ignore[attr-defined]
Answer = TypeVar("Answer")

COSTLY, JUDGED_S = 0.15, 0.25  # The share of its time that the collector may write, looked at so often.
THREAD_S, MOST_THREAD_S = 1.0, 64.0  # Where it is more, a thread writes so long, and the next time twice as long.


class Writer:
    """Makes and fills a file, or the shards of a team.  StorageError from any method, once it could not be written.

    `blocks`, of `num_rows` each, go round; the first row of each is a multiple of that.
    """

    def __init__(self, file: "RunFile | TeamFiles", blocks: list[Block]):
        self._file, self.part = file, file.part
        self.num_rows = blocks[0].num_rows if blocks else 0
        self.num_waits = 0  # Of the collector, for the file: for a free block, or long for what it wrote by itself.
        self._error: BaseException | None = None
        self._work: queue.Queue[Callable[[], object]] = queue.Queue()
        self._free: queue.LifoQueue[Block] = queue.LifoQueue()  # The last one is in the cache; others may stay unused.
        for block in blocks:
            self._free.put(block)
        self._thread_s, self._thread_until = THREAD_S, 0.0  # The time until which the thread writes.
        self._spent_s, self._judged_s = 0.0, perf_counter()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._ask(file.begin)
        self.values = file.values  # The counts of wrong values.

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
        """Write and commit the first `num_rows` rows and the observations after them, where the block has those.

        A full block comes back by `acquire`; another goes on growing and is submitted again.
        """
        self.check()
        start = perf_counter()
        is_here = self._do(lambda: self._append(block, num_rows))
        now = perf_counter()
        self._spent_s += now - start
        if not is_here:
            self._spent_s, self._judged_s = 0.0, now
        elif now - self._judged_s > JUDGED_S:
            self._judge(self._spent_s > COSTLY * (now - self._judged_s), now)

    def _judge(self, is_costly: bool, now: float) -> None:
        """Choose who writes from now on, by whether the collector has written for too long."""
        self.num_waits += is_costly
        if is_costly:
            self._thread_until, self._thread_s = now + self._thread_s, min(2 * self._thread_s, MOST_THREAD_S)
        else:
            self._thread_s = THREAD_S
        self._spent_s, self._judged_s = 0.0, now

    def _append(self, block: Block, num_rows: int) -> None:
        self._file.append(block, num_rows)
        if num_rows == block.num_rows:
            self._free.put(block)

    def add_interval(self, time_s: float, env_steps: int, env_steps_per_s: float) -> None:
        """Write a row of /throughput/intervals at the next commit."""
        self.note("throughput/intervals", np.array([(time_s, env_steps, env_steps_per_s)], INTERVAL))

    def add_fault(self, env_index: int, step: int, message: str) -> None:
        """Write a row of /faults at the next commit; call it before the step is submitted."""
        self.note("faults", np.array([fault_row(env_index, step, message)], FAULT))

    def note(self, table: str, rows: np.ndarray) -> None:
        """Write rows of a table at the next commit; call it before steps are submitted that /resets is about."""
        self._do(lambda: self._file.note(table, rows))

    def drain(self) -> None:
        """Wait until all that was submitted is committed."""
        self._ask(lambda: None)

    def finish(self, ending: Ending) -> str:
        """Commit, close, and if the run is complete check the file and give it its name; return where it is."""
        return self._ask(lambda: self._file.finish(ending))

    def discard(self) -> None:
        self._ask(self._file.discard)

    def release(self) -> None:
        """Let other runs write there.  Call it last of all: what they say of themselves then stays."""
        self._file.release()

    def _do(self, task: Callable[[], object]) -> bool:
        """Call `task` after all that came before; return whether that was here, and not left to the thread."""
        is_here = self._work.unfinished_tasks == 0 and perf_counter() >= self._thread_until
        if is_here:
            self._call(task)
        else:
            self._work.put(task)
        return is_here

    def _call(self, task: Callable[[], object]) -> None:
        try:
            with _one_thread:
                if self._error is None:
                    task()
        except Exception as error:  # HDF5 reports a full disk as RuntimeError.
            self._error = error
            _kept.append(error)

    def _ask(self, task: Callable[[], Answer]) -> Answer:
        """Call `task` in the thread; wait for what it returns.  It may take long, and signals are heeded meanwhile."""
        answer: queue.Queue[Answer] = queue.Queue()
        self._work.put(lambda: answer.put(task()))
        return self._wait_for(answer)

    def _wait_for(self, items: "queue.Queue[Answer]") -> Answer:
        while True:
            self.check()
            try:
                return items.get(timeout=0.2)
            except queue.Empty:
                continue

    def check(self) -> None:
        """Raise the error of the write that failed, if one has."""
        if self._error is None:
            return
        if isinstance(self._error, RolloutError):
            raise self._error
        if isinstance(self._error, FileExistsError):
            way_out = "another run writes there or has written; move the file or use another --out"
            raise StorageError(f"{self._error}; {way_out}")
        way_out, part, num_steps = "", self._file.part, self.num_committed
        if num_steps:
            recover = f"`python -m mpi_rollout recover {quote(part)}` makes a file of them"
            way_out = f"; {recover if self._file.is_recording else 'make room, then the same command continues'}"
        kept = f"its first {counted(num_steps, 'step')} {'is' if num_steps == 1 else 'are'} committed{way_out}"
        raise StorageError(f"cannot write {part}: {system_words(self._error)} ({free_space(part)}); {kept}")

    def _run(self) -> None:
        """Do what the main thread leaves to this one, one task after the other."""
        while True:
            try:
                self._call(self._work.get())
            except BaseException as error:  # Nobody else would hear of it, and the main thread wait.
                self._error = error
                _kept.append(error)
            self._work.task_done()
