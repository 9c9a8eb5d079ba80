"""`--measure-limit`: the limit of a run, measured before, between and after its parts."""

from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.watcher import Progress, Watcher
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.bare import Limit

NUM_PARTS = 5


class LimitMeter(Watcher):
    """Measures bare loops on all ranks at each pause; notes the rate of each part beside the limits around it."""

    def __init__(self, seconds: float, driver: Driver, state: RunState):
        self._measure_s, self._driver, self._state = seconds, driver, state
        self._limit = 0.0  # Of the last pause.
        self._env_steps, self._seconds = 0, 0.0  # Of the run at that pause.

    def on_pause(self, progress: Progress) -> None:
        before, driver = self._limit, self._driver
        self._limit = sum(driver.call_ranks(driver.service(Limit).measure, self._measure_s))
        self._driver.clock.lap("other")
        seconds = self._state.seconds - self._seconds
        if seconds:
            rate = (progress.env_steps - self._env_steps) / seconds
            self._state.limit.append((rate, (before + self._limit) / 2))
        self._env_steps, self._seconds = progress.env_steps, self._state.seconds
