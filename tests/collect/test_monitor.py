"""What the root looks at between two steps, without a run; what is told of ranks that a run goes on without."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from mpi_rollout.collect.leaders import STOP_TAG, Leaders, Outcome
from mpi_rollout.collect.monitor import LostRank, LostRanks, Monitor, RunState
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import Interrupted, RankLost
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.process.clock import PHASES

pytestmark = pytest.mark.any_mpi
STEP_S = np.array([1.0, 5.0, 1.0])


@pytest.fixture
def driver() -> SimpleNamespace:
    return SimpleNamespace(clock=SimpleNamespace(now=0.0, seconds=dict.fromkeys(PHASES, 0.0)), stop_signal=0)


@pytest.fixture
def state() -> RunState:
    return RunState(None, writer=MagicMock(num_committed=7, worst_commit_s=0.0))


@pytest.fixture
def monitor(driver: SimpleNamespace, state: RunState) -> Monitor:
    config = RolloutConfig(env="CartPole-v1", progress="none")
    monitor = Monitor(config, driver, state, MagicMock(), Leaders(SingleRankComm()))
    monitor.progress = MagicMock(every_s=1.0)
    return monitor


def look(monitor: Monitor, driver: SimpleNamespace, now_s: float, env_steps: int) -> None:
    driver.clock.now = now_s
    tally = SimpleNamespace(env_steps=env_steps, step_s=STEP_S, mean_s=0.0, slowest_s=0.0)
    monitor.on_look(SimpleNamespace(num_steps=1, goal=None, tally=tally))


LOOKS = ((100.0, 0), (100.5, 700), (101.0, 710), (101.5, 900), (102.0, 910))


def test_the_rate_that_is_shown_is_that_since_the_last_line(monitor: Monitor, driver: SimpleNamespace):
    """Not that since the last look, of which there are many."""
    for now_s, env_steps in LOOKS:
        look(monitor, driver, now_s, env_steps)
    assert [call.args[0].env_steps_per_s for call in monitor.progress.tell.call_args_list] == [710.0, 200.0]


def test_the_rates_in_the_file_are_those_between_looks(monitor: Monitor, driver: SimpleNamespace, state: RunState):
    for now_s, env_steps in (*LOOKS, (102.5, 910)):  # In the last one nothing was stepped.
        look(monitor, driver, now_s, env_steps)
    intervals = [call.args for call in state.writer.add_interval.call_args_list]
    assert intervals == [(0.5, 700, 1400.0), (1.0, 710, 20.0), (1.5, 900, 380.0), (2.0, 910, 20.0)]


class Others:
    """A communicator of three leaders: what two others tell the first one."""

    rank, size = 0, 3

    def __init__(self):
        self.told: list[tuple[int, object]] = []

    def iprobe(self, tag: int) -> bool:
        return bool(self.told)

    def recv(self, tag: int) -> tuple[int, object]:
        return self.told.pop(0)

    def Send(self, _sign: np.ndarray, rank: int, tag: int) -> None:  # noqa: N802
        if tag == STOP_TAG:
            self.told.append((rank, None))


ENDED = Outcome(0, 30)


def test_what_is_shown_of_shards_is_of_all_once_all_have_told_it(monitor: Monitor, driver: SimpleNamespace):
    others = Others()
    monitor._leaders = leaders = Leaders(others)
    look(monitor, driver, 100.0, 0)
    others.told = [(1, (2, 2, 50, np.nan, 0)), (2, (9, 9, 80, 10, 0))]
    look(monitor, driver, 101.5, 150)
    assert leaders.intervals == [] and not monitor.progress.tell.called
    others.told = [(1, (4, 3, 60, 20, 0))]
    look(monitor, driver, 102.0, 200)
    assert leaders.intervals == [(2.0, 200 + 60 + 80, 100.0 + 20.0 + 10.0)]
    [done] = monitor.progress.tell.call_args.args
    assert (done.steps, done.env_steps, done.env_steps_per_s) == ("1 to 9", 340, 170.0)
    others.told = [(2, ENDED)]
    look(monitor, driver, 102.5, 250)
    assert leaders.intervals[1:] == [(2.5, 250 + 60 + 80, 100.0 + 20.0)] and leaders.steps == (1, 30)


def test_the_first_leader_looks_after_teams_that_go_on_when_its_own_has_ended(
    monitor: Monitor, driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    others, now_s = Others(), [100.0]
    monkeypatch.setattr("mpi_rollout.collect.monitor.perf_counter", lambda: now_s[0])
    monitor._leaders = leaders = Leaders(others)
    seconds = iter((0.1, 0.5, 3.0))

    def look_after() -> None:
        if not (more := next(seconds, None)):
            others.told = [(1, ENDED), (2, ENDED)]
            return
        now_s[0] += more
        monitor.look_after_others()
        others.told = [(1, (4, 3, 60, 20, 0)), (2, (9, 8, 80, 10, 0))]

    outcomes = leaders.settle(ENDED, look_after)
    assert len(outcomes) == 3 and leaders.intervals == [(0.5, 140, 30.0), (3.5, 140, 30.0)]
    assert [call.args[0].steps for call in monitor.progress.tell.call_args_list] == ["4 to 30"]
    assert [call.kwargs["num_steps"] for call in monitor._status.tell.call_args_list] == [0, 3]
    monitor._deadline = MagicMock(reason="--max-walltime", is_near=lambda *_: True)
    with pytest.raises(Interrupted, match=r"rank 0 \(.*\): stopped for --max-walltime"):
        monitor.look_after_others()


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


HOSTS = ["one", "one", "two"]


class Run:
    """Three ranks with two envs each, of which rank 0 drives the run, at step 1000."""

    def __init__(self, num_stepping: int = 1):
        self.said: list[str] = []
        self.faults: list[tuple[int, int, str]] = []
        self.answers: list[object] = []
        exchanges = SimpleNamespace(num_stepping=num_stepping, division=Division(6, 3))
        worker = SimpleNamespace(control=SimpleNamespace(report="report"))
        driver = SimpleNamespace(exchanges=exchanges, worker=worker, call_ranks=self.call_ranks)
        collector = SimpleNamespace(num_steps=1000, lose=lambda rank: range(2 * rank, 2 * rank + 2))
        file = SimpleNamespace(add_fault=lambda *fault: self.faults.append(fault))
        self.state = SimpleNamespace(collector=collector, file=file)
        config = RolloutConfig(env="CartPole-v1", num_envs=6)
        self.lost_ranks = LostRanks(config, driver, dict(enumerate(HOSTS)), self.said.append)

    def call_ranks(self, method: str) -> object:
        assert method == "report"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(("num_envs", "envs"), [(1, "env 4"), (3, "envs 4 to 6")])
def test_a_lost_rank_is_named_with_its_host_envs_and_step(num_envs: int, envs: str):
    assert str(LostRank(2, "two", 4, num_envs, 12345)) == f"rank 2 (two), {envs}, at step 12,345"


def test_each_env_of_a_lost_rank_gets_a_fault_and_the_user_is_told_what_is_left():
    run = Run()
    run.lost_ranks.note([2], run.state)
    run.lost_ranks.note([1], run.state)
    assert [loss.rank for loss in run.lost_ranks.all] == [2, 1]
    assert run.said == [
        "mpi_rollout: lost rank 2 (two), envs 4 to 5, at step 1,000; going on with 4 of 6 envs\n",
        "mpi_rollout: lost rank 1 (one), envs 2 to 3, at step 1,000; going on with 2 of 6 envs\n",
    ]
    second, first = [(env, 1000, "lost rank 1 (one)") for env in (2, 3)], [(4, 1000, "lost rank 2 (two)")]
    assert run.faults == [*first, (5, 1000, "lost rank 2 (two)"), *second]


def test_a_run_without_a_rank_that_steps_envs_ends():
    run = Run(num_stepping=0)
    with pytest.raises(RankLost, match=r"^lost rank 2 \(two\), envs 4 to 5, at step 1,000; no rank is left that steps"):
        run.lost_ranks.note([1, 2], run.state)
    assert len(run.lost_ranks.all) == 2 and run.said == []


def test_of_a_rank_that_is_gone_the_report_says_what_is_known():
    run = Run()
    reports = [{"rank": rank, "host": HOSTS[rank], "num_envs": 2, "seconds": {"step": 1.0}} for rank in (0, 2)]
    run.answers = [RankLost("lost rank 1"), reports]
    missing = {"rank": 1, "host": "one", "num_envs": 2, "seconds": dict.fromkeys(PHASES, 0.0), "fault": None}
    assert run.lost_ranks.reports() == [reports[0], missing, reports[1]]
    assert run.said == ["mpi_rollout: lost rank 1\n"]
