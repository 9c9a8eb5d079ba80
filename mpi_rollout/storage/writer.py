"""One thread owns the file: it alone touches h5py, while the main thread collects.

Blocks go round between the two: the collector fills one while others are written.  If none is free the collector
waits, and that is counted; memory stays bounded and no step is dropped.

A commit is: data, flush, then `num_steps`, flush, in SWMR mode.  HDF5 then keeps the file readable at every moment,
so what `num_steps` counts is there even after a SIGKILL.
"""

import os
import queue
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import StorageError, first_line
from mpi_rollout.layout import Block
from mpi_rollout.storage.episodes import EpisodeTable
from mpi_rollout.storage.reader import check_complete
from mpi_rollout.storage.schema import INTERVAL, LIMIT, RANK, Schema
from mpi_rollout.timing import PHASES


@dataclass(frozen=True)
class Ending:
    """What is known only at the end of a run, for the file."""

    finished: str
    env_steps: int
    seconds: float
    ranks: list[dict[str, Any]]
    limit: list[tuple[float, float]]
    complete: bool


class Writer:
    """Writes blocks to `<path>.part`; the name `path` appears when the file is complete and checked.

    Parameters
    ----------
    blocks
        To go round; the first row of each is a multiple of its length.

    Raises
    ------
    StorageError
        From any method, when the thread could not write.
    """

    def __init__(self, path: str, schema: Schema, blocks: list[Block], episodes: EpisodeTable | None):
        self.path, self.part = path, path + ".part"
        self.num_committed = 0
        self.num_waits = 0
        self._error: Exception | None = None
        self._schema, self._episodes = schema, episodes
        self._intervals: list[tuple[float, int, float]] = []
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        for block in blocks:
            self._free.put(block)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._ask(self._create)

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

    def drain(self) -> None:
        """Wait until all that was submitted is committed."""
        self._ask(lambda: None)

    def finish(self, ending: Ending) -> str:
        """Commit, close, and if the run is complete check the file and give it its name; return where it is."""
        return self._ask(lambda: self._finish(ending))

    def discard(self) -> None:
        """Close and remove the unfinished file."""
        self._ask(self._discard)

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
        if isinstance(self._error, FileExistsError):
            raise StorageError(
                f"{self._error}; another run writes there or has written; move the file or use another --out"
            )
        raise StorageError(
            f"cannot write {self.part}: {first_line(self._error)} ({free_space(self.path)}); "
            f"its first {self.num_committed} steps are committed"
        )

    # What follows runs in the writer's thread only.

    def _run(self) -> None:
        while True:
            task, arguments = self._work.get()
            try:
                task(*arguments)
            except Exception as error:  # HDF5 reports a full disk as RuntimeError.
                self._error = error
                return

    def _create(self) -> None:
        self._file = self._schema.create(self.part)
        self._num_rows_seen = 0
        self._columns = []
        if self._schema.named:
            self._columns = [(name, self._file["trajectories"][name]) for name in self._schema.named]

    def _append(self, block: Block, num_rows: int) -> None:
        start = max(self._num_rows_seen - block.start, 0)
        is_full = num_rows == block.num_rows
        for name, dataset in self._columns:
            stop = num_rows + (name.startswith("observations") and not is_full)
            append_rows(dataset, block.named[name], block.start, start, stop)
        if num_rows > start:
            self._episodes.add(block, start, num_rows)
        self._num_rows_seen = block.start + num_rows
        self._commit(self._num_rows_seen - is_full)
        if is_full:
            self._free.put(block)

    def _commit(self, num_steps: int) -> None:
        """Make the first `num_steps` steps and the observations after them count."""
        extend(self._file["episodes"], self._episodes.take(num_steps))
        self._write_intervals()
        self._file.flush()
        self._file["trajectories"].attrs.modify("num_steps", np.int64(num_steps))
        self._file.flush()
        self.num_committed = num_steps

    def _write_intervals(self) -> None:
        extend(self._file["throughput/intervals"], np.array(self._intervals, INTERVAL))
        self._intervals.clear()

    def _finish(self, ending: Ending) -> str:
        if self._columns:
            extend(self._file["episodes"], self._episodes.unfinished(self.num_committed))
        throughput = self._file["throughput"]
        self._write_intervals()
        extend(throughput["limit"], np.array(ending.limit, LIMIT))
        throughput["ranks"][...] = rank_rows(ending.ranks)
        throughput.attrs.modify("env_steps", np.int64(ending.env_steps))
        throughput.attrs.modify("seconds", np.float64(ending.seconds))
        if ending.complete:
            self._file.attrs.modify("finished", np.bytes_(ending.finished.ljust(32).encode()))
        self._file.flush()
        self._file.close()
        return self._give_name() if ending.complete else self.part

    def _give_name(self) -> str:
        with open(self.part, "rb") as file:
            os.fsync(file.fileno())
        check_complete(self.part)
        if os.path.exists(self.path):
            raise FileExistsError(f"{self.path} has appeared during the run")
        os.replace(self.part, self.path)
        folder = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return self.path

    def _discard(self) -> None:
        self._file.close()
        os.unlink(self.part)


def free_space(path: str) -> str:
    """Say how much the file system of a file has left: most often what is wrong when it cannot be written."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB free in {folder}"
    except OSError as error:
        return f"{folder}: {error.strerror}"


def append_rows(dataset: h5py.Dataset, array: np.ndarray, first_step: int, start: int, stop: int) -> None:
    """Write rows start to stop of a block's array behind `dataset`, in whole chunks straight from memory.

    HDF5's own path copies into its chunk cache first and stood at 0.2 to 0.4 of the rate of plain writes where
    this one stood at 0.6 to 0.8.  Rows of the last chunk beyond `stop` are written too, but not part of the
    dataset; they are written again when they are.
    """
    if stop <= start:
        return
    dataset.resize(max(first_step + stop, dataset.shape[0]), axis=0)
    rows, envs, *_ = dataset.chunks
    for row in range(start - start % rows, stop, rows):
        for env in range(0, array.shape[1], envs):
            chunk = array[row : row + rows, env : env + envs]
            if chunk.shape != dataset.chunks:
                padded = np.zeros(dataset.chunks, array.dtype)
                padded[tuple(slice(size) for size in chunk.shape)] = chunk
                chunk = padded
            place = (first_step + row, env, *(0 for _ in array.shape[2:]))
            dataset.id.write_direct_chunk(place, chunk)


def extend(dataset: h5py.Dataset, rows: np.ndarray) -> None:
    """Append rows to a table."""
    if len(rows):
        start = len(dataset)
        dataset.resize(start + len(rows), axis=0)
        dataset[start:] = rows


def rank_rows(reports: list[dict[str, Any]]) -> np.ndarray:
    """Rows of /throughput/ranks from what the ranks reported."""
    rows = np.zeros(len(reports), RANK)
    for row, report in zip(rows, reports, strict=True):
        row["rank"], row["host"], row["num_envs"] = report["rank"], report["host"].encode(), report["num_envs"]
        for phase in PHASES:
            row[phase] = report["seconds"][phase]
    return rows
