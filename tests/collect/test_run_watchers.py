"""What the watchers of a run do with what they are told, without a run."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from single_rank import collector_of, driver_of, single_team

from mpi_rollout.collect.collector import Collector
from mpi_rollout.collect.file_notes import FileNotes
from mpi_rollout.collect.leaders import STOP_TAG, Leaders, Outcome
from mpi_rollout.collect.limit_meter import LimitMeter
from mpi_rollout.collect.lost_ranks import LostRanks
from mpi_rollout.collect.other_teams import OtherTeams
from mpi_rollout.collect.progress import Done, ProgressLine
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.run_status import RunStatus
from mpi_rollout.collect.run_watchers import make_watchers
from mpi_rollout.collect.stopping import PastChecks, StopSignal, TimeLimit
from mpi_rollout.collect.watcher import LostRank, Progress, Watcher, Watchers
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import DataError, Interrupted, RankLost
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.process.clock import PHASES, Spent

pytestmark = pytest.mark.any_mpi


@pytest.fixture
def state() -> RunState:
    return RunState(None, writer=MagicMock(num_committed=7, worst_commit_s=0.0))


class Shown:
    """A line that keeps what it is told."""

    every_s = 1.0

    def __init__(self):
        self.told: list[Done] = []

    def tell(self, done: Done) -> None:
        self.told.append(done)

    def close(self) -> None:
        pass


class Kept(Watcher):
    """A watcher that keeps what it is told at looks."""

    def __init__(self):
        self.looks: list[Progress] = []

    def on_look(self, progress: Progress) -> None:
        self.looks.append(progress)


# A collector, and what it tells at its looks.


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def collector(kept: Kept) -> Collector:
    collector = collector_of(driver_of(), 8)
    collector._watchers = kept
    collector.start()
    return collector


def look(collector: Collector, now_s: float, env_steps: int) -> None:
    collector.clock.now, collector.tally.env_steps = now_s, env_steps
    collector.look()


LOOKS = ((100.0, 0), (100.5, 700), (101.0, 710), (101.5, 900), (102.0, 910))


def test_rates_are_those_between_looks_at_which_there_were_new_steps(collector: Collector, kept: Kept):
    for now_s, env_steps in (*LOOKS, (102.5, 910), (103.0, 1010)):
        look(collector, now_s, env_steps)
    told = [(look.seconds, look.env_steps, look.interval_s, look.env_steps_per_s) for look in kept.looks[1:]]
    assert told == [
        (0.5, 700, 0.5, 1400.0),
        (1.0, 710, 0.5, 20.0),
        (1.5, 900, 0.5, 380.0),
        (2.0, 910, 0.5, 20.0),
        (2.5, 910, 0.0, 20.0),
        (3.0, 1010, 1.0, 100.0),
    ]
    first = kept.looks[0]
    assert (first.seconds, first.interval_s) == (0.0, 0.0) and np.isnan(first.env_steps_per_s)


def test_a_pause_is_in_no_interval(collector: Collector, kept: Kept):
    look(collector, 100.0, 0)
    collector.pause()
    look(collector, 200.0, 50)
    look(collector, 201.0, 150)
    assert [(look.seconds, look.interval_s) for look in kept.looks] == [(0.0, 0.0), (100.0, 0.0), (101.0, 1.0)]
    assert kept.looks[-1].env_steps_per_s == 100.0


def progress_at(seconds: float, env_steps: int, interval_s: float) -> Progress:
    return Progress(1, env_steps, seconds=seconds, interval_s=interval_s, env_steps_per_s=5.0)


def test_the_rate_that_is_shown_is_that_since_the_last_line():
    """Not that since the last look, of which there are many."""
    line = ProgressLine(shown := Shown(), Spent(True, False))
    for number, (now_s, env_steps) in enumerate(LOOKS):
        line.on_look(progress_at(now_s - 100.0, env_steps, 0.5 * (number > 0)))
    assert [done.env_steps_per_s for done in shown.told] == [710.0, 200.0]


def test_the_file_has_the_throughput_of_each_interval(state: RunState):
    notes = FileNotes(state, 0)
    for progress in (progress_at(0.0, 0, 0.0), progress_at(0.5, 700, 0.5), progress_at(1.0, 700, 0.0)):
        notes.on_look(progress)
    assert [call.args for call in state.writer.add_interval.call_args_list] == [(0.5, 700, 5.0)]


def test_faults_are_counted_by_env_of_the_whole_run_and_stored(state: RunState):
    notes = FileNotes(state, 100)
    for step in (3, 4):
        notes.on_fault(5, step, "it raised")
    assert state.restarts == {105: 2}
    assert [call.args for call in state.writer.add_fault.call_args_list] == [(5, 3, "it raised"), (5, 4, "it raised")]


def test_the_limit_of_a_part_is_the_mean_of_those_around_it(state: RunState):
    limits = iter(([50.0, 50.0], [100.0, 100.0]))
    driver = MagicMock(call_ranks=lambda *_: next(limits))
    meter = LimitMeter(0.1, driver, state)
    meter.on_pause(Progress(0, 0))
    state.seconds = 2.0
    meter.on_pause(Progress(9, 180))
    assert state.limit == [(90.0, 150.0)]


# What ends a run early.


def test_a_signal_ends_the_run_with_its_name_and_place(state: RunState):
    with pytest.raises(Interrupted, match=r"rank 0 \(.*\), step 7: stopped by SIGTERM"):
        StopSignal(lambda: 15, state).check()
    StopSignal(lambda: 0, state).check()


def test_damage_in_its_past_ends_a_run():
    check = MagicMock()
    check.poll.side_effect = DataError("it is damaged")
    with pytest.raises(DataError, match="it is damaged"):
        PastChecks(RunState(None, past_checks=(check,))).check()


def test_a_time_limit_ends_a_run_before_a_commit_that_would_come_too_late(state: RunState):
    asked: list[float] = []
    deadline = SimpleNamespace(is_near=lambda *seconds: asked.extend(seconds), reason="--max-walltime")
    limit = TimeLimit(deadline, lambda: 3.0, state)
    limit.check()
    assert asked == [3.0, 0.0]
    deadline.is_near = lambda *_: True
    with pytest.raises(Interrupted, match=r"step 7: stopped for --max-walltime"):
        limit.check()


# Several teams.


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


def test_what_is_shown_of_shards_is_of_all_once_all_have_told_it(state: RunState):
    others = Others()
    leaders, shown = Leaders(others), Shown()
    teams = OtherTeams([ProgressLine(shown, Spent(True, False))], leaders, Watchers([]), state)

    def tell(seconds: float, env_steps: int, interval_s: float) -> None:
        teams.on_look(Progress(1, env_steps, seconds=seconds, interval_s=interval_s, env_steps_per_s=100.0))

    tell(0.0, 0, 0.0)
    others.told = [(1, (2, 2, 50, np.nan, 0)), (2, (9, 9, 80, 10, 0))]
    tell(1.5, 150, 1.5)
    assert leaders.intervals == [] and not shown.told
    others.told = [(1, (4, 3, 60, 20, 0))]
    tell(2.0, 200, 0.5)
    assert leaders.intervals == [(2.0, 200 + 60 + 80, 100.0 + 20.0 + 10.0)]
    [done] = shown.told
    assert (done.steps, done.env_steps, done.env_steps_per_s) == ("1 to 9", 340, 170.0)
    others.told = [(2, ENDED)]
    tell(2.5, 250, 0.5)
    assert leaders.intervals[1:] == [(2.5, 250 + 60 + 80, 100.0 + 20.0)] and leaders.steps == (1, 30)


def test_the_first_leader_looks_after_teams_that_go_on_when_its_own_has_ended(
    state: RunState, monkeypatch: pytest.MonkeyPatch
):
    others, now_s, shown, status = Others(), [100.0], Shown(), MagicMock()
    monkeypatch.setattr("mpi_rollout.collect.other_teams.perf_counter", lambda: now_s[0])
    leaders = Leaders(others)
    deadline = MagicMock(reason="--max-walltime", is_near=lambda *_: False)
    state.is_alone = False
    stops = TimeLimit(deadline, lambda: 0.0, state)
    members = [RunStatus("run.h5", status), ProgressLine(shown, Spent(True, False))]
    teams, seconds = OtherTeams(members, leaders, stops, state), iter((0.1, 0.5, 3.0))

    def look_after() -> None:
        if not (more := next(seconds, None)):
            others.told = [(1, ENDED), (2, ENDED)]
            return
        now_s[0] += more
        teams.look_after()
        others.told = [(1, (4, 3, 60, 20, 0)), (2, (9, 8, 80, 10, 0))]

    outcomes = leaders.settle(ENDED, look_after)
    assert len(outcomes) == 3 and leaders.intervals == [(0.5, 140, 30.0), (3.5, 140, 30.0)]
    assert [done.steps for done in shown.told] == ["4 to 30"]
    assert [call.kwargs["num_steps"] for call in status.tell.call_args_list] == [0, 3]
    deadline.is_near = lambda *_: True
    with pytest.raises(Interrupted, match=r"rank 0 \(.*\): stopped for --max-walltime"):
        teams.look_after()


def test_a_team_ends_when_another_one_has_failed(state: RunState):
    leaders = SimpleNamespace(is_to_end=lambda: True)
    with pytest.raises(Interrupted, match="stopped, because another rank ends the run"):
        OtherTeams([], leaders, Watchers([]), state).check()


# Lost ranks.

HOSTS = ["one", "one", "two"]


def loss_of(rank: int) -> LostRank:
    return LostRank(rank, HOSTS[rank], 2 * rank, 2, 1000)


class Run:
    """Three ranks with two envs each, of which rank 0 drives the run, at step 1000."""

    def __init__(self, num_stepping: int = 1):
        self.said: list[str] = []
        self.answers: list[object] = []
        exchanges = SimpleNamespace(num_stepping=num_stepping, division=Division(6, 3))
        worker = SimpleNamespace(control=SimpleNamespace(report="report"))
        driver = SimpleNamespace(exchanges=exchanges, call_ranks=self.call_ranks, worker=worker)
        self.lost_ranks = LostRanks(driver, dict(enumerate(HOSTS)), self.said.append)

    def call_ranks(self, method: str) -> object:
        assert method == "report"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(("num_envs", "envs"), [(1, "env 4"), (3, "envs 4 to 6")])
def test_a_lost_rank_is_named_with_its_host_envs_and_step(num_envs: int, envs: str):
    assert str(LostRank(2, "two", 4, num_envs, 12345)) == f"rank 2 (two), {envs}, at step 12,345"


def test_each_env_of_a_lost_rank_gets_a_fault_and_the_user_is_told_what_is_left(state: RunState):
    run = Run()
    watchers = Watchers([run.lost_ranks, FileNotes(state, 0)])
    watchers.on_losses([loss_of(2)])
    watchers.on_losses([loss_of(1)])
    assert [loss.rank for loss in run.lost_ranks.all] == [2, 1]
    assert run.said == [
        "mpi_rollout: lost rank 2 (two), envs 4 to 5, at step 1,000; going on with 4 of 6 envs\n",
        "mpi_rollout: lost rank 1 (one), envs 2 to 3, at step 1,000; going on with 2 of 6 envs\n",
    ]
    faults = [call.args for call in state.writer.add_fault.call_args_list]
    second, first = [(env, 1000, "lost rank 1 (one)") for env in (2, 3)], [(4, 1000, "lost rank 2 (two)")]
    assert faults == [*first, (5, 1000, "lost rank 2 (two)"), *second]


def test_a_run_without_a_rank_that_steps_envs_ends(state: RunState):
    run = Run(num_stepping=0)
    with pytest.raises(RankLost, match=r"^lost rank 2 \(two\), envs 4 to 5, at step 1,000; no rank is left that steps"):
        Watchers([run.lost_ranks, FileNotes(state, 0)]).on_losses([loss_of(1), loss_of(2)])
    assert len(run.lost_ranks.all) == 2 and run.said == [] and not state.writer.add_fault.called


def test_of_a_rank_that_is_gone_the_report_says_what_is_known():
    run = Run()
    reports = [{"rank": rank, "host": HOSTS[rank], "num_envs": 2, "seconds": {"step": 1.0}} for rank in (0, 2)]
    run.answers = [RankLost("lost rank 1"), reports]
    missing = {"rank": 1, "host": "one", "num_envs": 2, "seconds": dict.fromkeys(PHASES, 0.0), "fault": None}
    assert run.lost_ranks.reports() == [reports[0], missing, reports[1]]
    assert run.said == ["mpi_rollout: lost rank 1\n"]


# The list.


def names_of(tmp_path, monkeypatch: pytest.MonkeyPatch, **options: object) -> list[str]:
    """The classes of the watchers that a run on one process has."""
    for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    config = RolloutConfig(env="CartPole-v1", out=str(tmp_path / "run.h5"), **options)
    source, leaders = PolicySource("random", "random"), Leaders(SingleRankComm())
    watchers = make_watchers(single_team(config), leaders, driver_of(), RunState(None), source, {0: "here"})
    return [type(member).__name__ for member in watchers.all._members]


def test_what_is_off_is_not_in_the_list(tmp_path, monkeypatch):
    always = ["LostRanks", "FileNotes", "Watchers", "RunStatus"]
    assert names_of(tmp_path, monkeypatch, progress="none") == always
    asked = {"log_dir": "curves", "trace": "trace.json", "measure_limit": True, "max_walltime": "01:00:00"}
    names = names_of(tmp_path, monkeypatch, **asked)
    assert names == [*always, "ProgressLine", "TimeLimit", "Scalars", "Trace", "LimitMeter"]
