"""What the file of a run has beside its steps: the throughput between looks, and which envs failed."""

from collections.abc import Sequence

from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.watcher import LostRank, Progress, Watcher
from mpi_rollout.errors import as_flag


class FileNotes(Watcher):
    """Notes in the file what happens, and says which values came that a file should not have.

    `first_env` is the index of the first env in the run; the file counts from 0.
    """

    def __init__(self, state: RunState, first_env: int):
        self._state, self._first_env = state, first_env

    def on_look(self, progress: Progress) -> None:
        self._state.file.values.say_warnings(as_flag)
        if progress.interval_s:
            self._state.file.add_interval(progress.seconds, progress.env_steps, progress.env_steps_per_s)

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        self._state.restarts[self._first_env + env_index] += 1
        self._state.file.add_fault(env_index, step, message)

    def on_losses(self, ranks: Sequence[LostRank]) -> None:
        for loss in ranks:
            for env_index in loss.envs:
                self._state.file.add_fault(env_index, loss.step, f"lost rank {loss.rank} ({loss.host})")

    def on_close(self, progress: Progress) -> None:
        self._state.file.values.say_warnings(as_flag)
