"""What the root looks at between two steps, without a run."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from mpi_rollout.collect.monitor import Monitor, RunState
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import Interrupted

pytestmark = pytest.mark.any_mpi
STEP_S = np.array([1.0, 5.0, 1.0])


@pytest.fixture
def driver() -> SimpleNamespace:
    return SimpleNamespace(clock=SimpleNamespace(now=0.0, seconds={}), stop_signal=0)


@pytest.fixture
def state() -> RunState:
    return RunState(None, writer=MagicMock(num_committed=7, worst_commit_s=0.0, values=None))


@pytest.fixture
def monitor(driver: SimpleNamespace, state: RunState) -> Monitor:
    config = RolloutConfig(env="CartPole-v1", progress="none")
    monitor = Monitor(config, driver, state, MagicMock())
    monitor.progress = MagicMock(every_s=1.0)
    return monitor


def look(monitor: Monitor, driver: SimpleNamespace, now_s: float, env_steps: int) -> None:
    driver.clock.now = now_s
    monitor.on_look(SimpleNamespace(num_steps=1, tally=SimpleNamespace(env_steps=env_steps, step_s=STEP_S)))


LOOKS = ((100.0, 0), (100.5, 700), (101.0, 710), (101.5, 900), (102.0, 910))


def test_the_rate_that_is_shown_is_that_since_the_last_line(monitor: Monitor, driver: SimpleNamespace):
    """Not that since the last look, of which there are many."""
    for now_s, env_steps in LOOKS:
        look(monitor, driver, now_s, env_steps)
    assert [call.args[2] for call in monitor.progress.tell.call_args_list] == [710.0, 200.0]


def test_the_rates_in_the_file_are_those_between_looks(monitor: Monitor, driver: SimpleNamespace, state: RunState):
    for now_s, env_steps in (*LOOKS, (102.5, 910)):  # In the last one nothing was stepped.
        look(monitor, driver, now_s, env_steps)
    intervals = [call.args for call in state.writer.add_interval.call_args_list]
    assert intervals == [(0.5, 700, 1400.0), (1.0, 710, 20.0), (1.5, 900, 380.0), (2.0, 910, 20.0)]


def test_a_pause_is_in_no_interval(monitor: Monitor, driver: SimpleNamespace, state: RunState):
    look(monitor, driver, 100.0, 0)
    monitor.pause()
    look(monitor, driver, 200.0, 50)
    look(monitor, driver, 201.0, 150)
    assert [call.args for call in state.writer.add_interval.call_args_list] == [(101.0, 150, 100.0)]


def test_a_signal_ends_the_run_with_its_name_and_place(monitor: Monitor, driver: SimpleNamespace):
    driver.stop_signal = 15
    with pytest.raises(Interrupted, match=r"rank 0 \(.*\), step 7: stopped by SIGTERM"):
        monitor.check_stop()


def test_faults_are_counted_by_env_and_stored(monitor: Monitor, state: RunState):
    for step in (3, 4):
        monitor.on_fault(5, step, "it raised")
    assert state.restarts == {5: 2}
    assert [call.args for call in state.writer.add_fault.call_args_list] == [(5, 3, "it raised"), (5, 4, "it raised")]
