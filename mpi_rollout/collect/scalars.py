"""`--log-dir`: the curves of a run for TensorBoard, over its env steps, written by the root while it runs.

The `SummaryWriter`s of the libraries write in a thread; a full disk ends it, and who writes then waits for ever.  So
the root writes each point by itself, with the records of the package tensorboard.  They take 0.08 s to import; those
of tensorboardX and torch take 1 s, because they import torch.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.watcher import Progress, Spending, Watcher
from mpi_rollout.errors import Option, StorageError, UsageError
from mpi_rollout.process.clock import Spent
from mpi_rollout.process.console import say
from mpi_rollout.process.paths import located
from mpi_rollout.storage.ownership import check_place, make_folder
from mpi_rollout.text import pip_install, system_words

LEAST_S, MOST_S, PART = 0.5, 30.0, 500  # Between two points: a part of the time so far, so that files stay small.


def check_log_dir(path: str) -> None:
    """Make the folder; UsageError if the package is missing, StorageError if no file can be written there."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise UsageError(Option("log_dir"), f" needs tensorboard; {pip_install('[tensorboard]')}") from error
    folder = located(path)
    for parent in reversed((folder, *map(str, Path(folder).parents))):
        make_folder(parent)  # It stays only if there is something in it at the end.
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise StorageError(Option("log_dir", path), f": cannot make this folder: {system_words(error)}") from error
    check_place("log_dir", path, os.path.join(folder, "events"))


class Scalars(Watcher):
    """Writes points of a run's curves into a folder, or none any more after the first failure.

    The curves go on from the env steps of earlier starts of the run: what there is of later steps is void.
    """

    def __init__(self, path: str, spent: Spent, state: RunState):
        self._path, self._folder = path, located(path)
        self._spent, self._state = spent, state
        self._file: IO[bytes] | None = None
        self._is_over = False
        self._next_at = 0.0
        self._began_at = self._seconds = 0.0
        self._before = np.zeros(0)

    def on_look(self, progress: Progress) -> None:
        """Write a point if it is time for one; the first look begins the first interval."""
        is_first = not len(self._before)
        if progress.interval_s or is_first:
            self._seconds += progress.interval_s
            now = time.monotonic()
            if now >= self._next_at:
                self._began_at = self._began_at or now
                self._next_at = now + min(max((now - self._began_at) / PART, LEAST_S), MOST_S)
                self._note(progress)

    def on_close(self, progress: Progress) -> None:
        """Write the last point: the file has all episodes now."""
        self._seconds += progress.interval_s
        self._note(progress)
        self._close()

    def _note(self, progress: Progress) -> None:
        """Write a point, but where nothing came since the last one."""
        if self._is_over:
            return
        # The number of episodes that the file has of this start, and the sums of their returns and of their lengths.
        ended = self._state.file.ended
        sums = np.array([progress.env_steps, *ended])
        losses = self._losses(progress.spent)
        if not len(self._before):  # What came before was no step; episodes count from the first one on.
            sums[-len(ended) :] = 0
        elif (sums != self._before).any():
            self._write(progress.env_steps, self._values(sums - self._before, losses))
        self._before, self._seconds = sums, 0.0

    def _losses(self, spent: Spending | None) -> Mapping[str, float]:
        if spent is None:
            return {}
        return self._spent.losses(self._seconds, spent.mean_s, spent.slowest_s, spent.phases)

    def _values(self, new: np.ndarray, losses: Mapping[str, float]) -> dict[str, float]:
        env_steps, num_ended, returns, lengths = new.tolist()
        values = {}
        if env_steps and self._seconds:  # Else these are episodes of the last point, which the file has only now.
            values = {f"time/{name}": share for name, share in losses.items()}
            values["throughput/env_steps_per_s"] = env_steps / self._seconds
        if num_ended:
            values |= {"episodes/return_mean": returns / num_ended, "episodes/length_mean": lengths / num_ended}
        return values | {"episodes/ended": num_ended}

    def _write(self, env_steps: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        before = self._state.env_steps_before
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        events = [Event(wall_time=time.time(), step=before + env_steps, summary=summary)]
        if self._file is None:
            start = SessionLog(status=SessionLog.START)  # Readers drop what they have of this step and later ones.
            header = Event(wall_time=time.time(), file_version="brain.Event:2")
            events = [header, Event(wall_time=time.time(), step=before + 1, session_log=start), *events]
        try:
            self._append([event.SerializeToString() for event in events])
        except OSError as error:
            self._close()
            say(f"mpi_rollout: --log-dir {self._path}: {system_words(error)}; the run goes on without these curves\n")

    def _append(self, records: list[bytes]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:  # Readers take the files of a folder in the order of their names.
            name = f"events.out.tfevents.{time.time():.6f}.{os.uname().nodename}.{os.getpid()}"
            self._file = open(os.path.join(self._folder, name), "xb", buffering=0)  # noqa: SIM115
        for record in records:
            RecordWriter(self._file).write(record)

    def _close(self) -> None:
        """Write no more."""
        self._is_over = True
        if self._file is not None:
            self._file.close()
            self._file = None
