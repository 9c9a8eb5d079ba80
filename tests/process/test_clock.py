"""When a run must stop: how durations are written, what the margin is, and that a job ends before its time."""

import os
import re
import time
from pathlib import Path

import pytest
from jobs import Job, assert_same_bytes, datasets

from mpi_rollout.errors import UsageError
from mpi_rollout.process import clock as clock_module
from mpi_rollout.process.clock import (
    AHEAD_S,
    ASK_AGAIN_S,
    ASK_EVERY_S,
    LEAST_MARGIN_S,
    PHASES,
    WORDS,
    Clock,
    Deadline,
    Spent,
    losses,
    now_s,
    process_start,
    seconds_of,
)

pytestmark = pytest.mark.any_mpi

RUN = ("--env-factory", "stopping_envs:Slow", "--num-envs", "4", "--progress", "none")
RUN += ("--policy", "stopping_envs:counting")
NOW, BOOT = 1_000_000.0, 999_900.0  # Seconds since 1970.


def test_each_phase_gets_the_time_since_the_last_lap_and_a_restart_gives_it_to_none(monkeypatch: pytest.MonkeyPatch):
    times = iter((10.0, 10.5, 12.5, 13.0, 20.0, 21.0))
    monkeypatch.setattr(clock_module, "perf_counter", lambda: next(times))
    clock = Clock()
    assert clock.seconds == dict.fromkeys(PHASES, 0.0)
    assert [clock.lap("policy"), clock.lap("step"), clock.lap("policy")] == [0.5, 2.0, 0.5]
    clock.restart()
    assert clock.lap("wait") == 1.0 and clock.now == 21.0
    assert {phase: s for phase, s in clock.seconds.items() if s} == {"policy": 1.0, "step": 2.0, "wait": 1.0}


def test_losses_are_those_since_the_last_asking_and_add_up_to_one():
    spent, phases = Spent(in_lockstep=True, asks_on_ranks=False), dict.fromkeys(PHASES, 1.0)
    spent.losses(9.0, 2.0, 3.0, phases)
    new = spent.losses(10.0, 7.0, 9.0, phases | {"policy": 2.0})
    assert new == pytest.approx({"envs": 0.5, "imbalance": 0.1, "exchange": 0.3, "policy": 0.1, "write": 0.0})
    new = spent.losses(8.0, 15.0, 19.0, phases | {"policy": 2.0})  # A fragment that began before the last asking.
    assert new == pytest.approx({"envs": 0.8, "imbalance": 0.2, "exchange": 0.0, "policy": 0.0, "write": 0.0})


def test_out_of_lockstep_losses_are_the_roots():
    found = losses(10.0, 9.0, 9.0, dict.fromkeys(PHASES, 1.0) | {"step": 5.0}, in_lockstep=False, asks_on_ranks=False)
    assert found == pytest.approx({"envs": 0.5, "exchange": 0.3, "policy": 0.1, "write": 0.1})


def test_a_policy_on_the_ranks_has_a_share_of_its_own():
    phases = dict.fromkeys(PHASES, 0.0) | {"step": 2.0, "policy": 5.0, "write": 1.0}
    found = losses(10.0, 7.0, 8.0, phases, in_lockstep=True, asks_on_ranks=True)
    assert found == pytest.approx({"envs": 0.2, "imbalance": 0.1, "exchange": 0.1, "policy": 0.5, "write": 0.1})
    spent = Spent(in_lockstep=True, asks_on_ranks=True)
    assert spent.losses(10.0, 7.0, 8.0, phases) == found
    zero = dict.fromkeys(found, 0.0)
    assert spent.losses(1.0, 7.0, 8.0, phases) == zero | {"exchange": 1.0}


def test_each_phase_that_is_a_part_of_a_run_has_a_word():
    assert {*WORDS, "other"} == {*PHASES}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90 * 60),
        ("0:06", 6),
        ("5:30", 5 * 60 + 30),
        ("0:90", 90),
        ("01:30:00", 90 * 60),
        ("100:00:00", 360_000),
        ("1-12", 36 * 3600),
        ("1-12:30", 36 * 3600 + 30 * 60),
        ("1-12:30:15", 36 * 3600 + 30 * 60 + 15),
        ("0-00:00:01", 1),
        (" 10:00 ", 600),
    ],
)
def test_a_duration_is_read_as_slurm_writes_it(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "soon", "1h", "-5", "1.5", "1:2:3:4", "1-", "-1:00", "1-2-3", "1::2", "UNLIMITED", "\u0665", "0", "0:00"],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match=r"^--max-walltime must be "):
        seconds_of(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock that stands at NOW, at which the process was started, until the test moves it, or that of the day."""

    def move(by_s: float, of_day_s: float = 0.0) -> None:
        monkeypatch.setattr(clock_module, "now_s", lambda: NOW - BOOT + by_s)
        monkeypatch.setattr(clock_module.time, "time", lambda: NOW + by_s + of_day_s)

    for name in ("SLURM_JOB_END_TIME", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(clock_module, "process_start", lambda: NOW - BOOT)
    move(0.0)
    return move


def test_the_margin_grows_with_the_worst_commit_and_the_worst_pause(clock):
    end = Deadline("1:40")
    for worst_commit_s, worst_pause_s in ((0.0, 0.0), (5.0, 0.0), (0.0, 7.0), (5.0, 7.0)):
        left_s = LEAST_MARGIN_S + 2 * worst_commit_s + 2 * worst_pause_s
        clock(100.0 - left_s - 0.1)
        assert not end.is_near(worst_commit_s, worst_pause_s)
        clock(100.0 - left_s + 0.1)
        assert end.is_near(worst_commit_s, worst_pause_s)
    assert end.reason == "--max-walltime"


@pytest.mark.parametrize(
    ("slurm_s", "reason"), [(50, "the SLURM job's time limit"), (100, "--max-walltime"), (500, "--max-walltime")]
)
def test_the_earlier_of_two_limits_counts(clock, monkeypatch, slurm_s, reason):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(NOW) + slurm_s))
    end = Deadline("1:40")
    assert end.reason == reason
    clock(min(slurm_s, 100) - LEAST_MARGIN_S - 1)
    assert not end.is_near(0.0, 0.0)
    clock(min(slurm_s, 100) - LEAST_MARGIN_S + 1)
    assert end.is_near(0.0, 0.0)


@pytest.mark.parametrize("value", [None, "", "never", "-1", "1e9"])
def test_without_a_limit_that_is_a_time_it_is_never_time_to_stop(clock, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("SLURM_JOB_END_TIME", value)
    clock(1e9)
    assert not Deadline(None).is_near(100.0, 100.0)


@pytest.mark.parametrize("of_day_s", [-3600.0, 3600.0], ids=["back", "forward"])
@pytest.mark.parametrize("is_of_slurm", [False, True])
def test_a_clock_that_is_set_during_the_run_moves_no_limit(clock, monkeypatch, of_day_s, is_of_slurm):
    if is_of_slurm:
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(NOW) + 100))
    end = Deadline(None if is_of_slurm else "1:40")
    clock(50.0, of_day_s)
    assert not end.is_near(0.0, 0.0)
    clock(99.0, of_day_s)
    assert end.is_near(0.0, 0.0)


class Squeue:
    """A `squeue` on the path that says how much time is left, and notes what it was asked."""

    def __init__(self, folder: Path):
        self._file, self._asked = folder / "squeue", folder / "asked"

    def say(self, told: str, then: str = "") -> None:
        self._file.write_text(f'#!/bin/sh\necho "$*" >> {self._asked}\necho "{told}"\n{then}\n')
        self._file.chmod(0o755)

    def asked(self) -> list[str]:
        """All that it was asked since the last time."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        self._asked.unlink(missing_ok=True)
        return lines


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock) -> Squeue:
    """This process is in job 7, which was to end 100 s from NOW when it began."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(NOW) + 100))
    return Squeue(tmp_path)


def test_a_limit_that_was_made_longer_is_heeded(clock, squeue):
    end = Deadline(None)
    clock(50.0)
    assert not end.is_near(0.0, 0.0) and squeue.asked() == []
    squeue.say("1-00:10:00")
    clock(99.0)
    assert not end.is_near(0.0, 0.0) and squeue.asked() == ["--noheader --jobs=7 --format=%L"]
    clock(200.0)
    assert not end.is_near(0.0, 0.0) and squeue.asked() == []
    squeue.say("UNLIMITED")
    clock(99 + 24 * 3600 + 599)
    assert not end.is_near(0.0, 0.0)


def test_slurm_is_asked_from_some_seconds_before_the_time_to_stop(clock, squeue):
    end, first_s = Deadline(None), 100.0 - LEAST_MARGIN_S - AHEAD_S
    squeue.say("1:40")
    clock(first_s - 1.0)
    assert not end.is_near(0.0, 0.0) and squeue.asked() == []
    clock(first_s)
    assert not end.is_near(0.0, 0.0) and len(squeue.asked()) == 1


def test_a_limit_that_was_made_shorter_is_heeded_in_time(clock, squeue, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(NOW) + 100_000))
    end = Deadline(None)
    squeue.say("30:00")
    clock(ASK_EVERY_S - ASK_AGAIN_S + 1)
    assert not end.is_near(0.0, 0.0) and len(squeue.asked()) == 1
    squeue.say("0:01")
    clock(ASK_EVERY_S + 1800.0)
    assert end.is_near(0.0, 0.0) and end.reason == "the SLURM job's time limit"


def test_a_release_that_tells_jobs_no_end_is_asked_at_once_and_not_at_each_step(clock, squeue, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "5")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    squeue.say("1:40")
    end = Deadline("1:00:00")
    assert [end.is_near(0.0, 0.0) for _ in range(3)] == [False] * 3
    assert squeue.asked() == ["--noheader --jobs=5_3 --format=%L"] and end.reason == "the SLURM job's time limit"
    squeue.say("0:01")
    clock(99.0)
    assert end.is_near(0.0, 0.0)


@pytest.mark.parametrize("told", ["", "INVALID", "NOT_SET", "0:00", "slurm_load_jobs error"])
def test_without_an_answer_the_limit_is_what_it_was(clock, squeue, told):
    end = Deadline(None)
    squeue.say(told, "exit 1")
    clock(97.0)
    assert not end.is_near(0.0, 0.0)
    clock(98.5)
    assert end.is_near(0.0, 0.0) and len(squeue.asked()) == 1


def test_an_answer_that_does_not_come_is_not_waited_for(clock, squeue, monkeypatch):
    monkeypatch.setattr(clock_module, "ANSWER_S", 0.1)
    squeue.say("1:00:00", "exec sleep 600")
    clock(99.0)
    assert Deadline(None).is_near(0.0, 0.0)


def test_the_start_of_this_process_is_known():
    age_s = now_s() - process_start()
    assert 0 <= age_s < 24 * 3600
    assert abs(time.time() - age_s - os.stat("/proc/self").st_ctime) < 60


@pytest.mark.mpi(2)
def test_a_job_ends_before_its_time_and_is_continued(job: Job, num_ranks):
    """4 s, of which the start takes some, and 2 s are kept free; 800 steps need 80 s at least."""
    arguments = (*RUN, "--num-steps", "800", "--out", "run.h5", "--max-walltime", "0:04")
    result = job(num_ranks, *arguments)
    assert result.code == 75 and result.messages[-1].partition(": stopped for ")[2].startswith("--max-walltime; the ")
    again = job(num_ranks, *arguments)
    first, second = (int(re.search(r"step (\d+): stopped", each.err)[1]) for each in (result, again))
    assert again.code == 75 and 0 < first <= second


@pytest.mark.mpi(2)
def test_the_end_of_the_slurm_job_is_heeded(job: Job, num_ranks):
    """Over already: every start takes as many steps as it takes to look."""
    arguments = (*RUN, "--num-steps", "6", "--out", "run.h5")
    result = job(num_ranks, *arguments, SLURM_JOB_END_TIME="1000000000")
    assert result.code == 75 and "stopped for the SLURM job's time limit; the 1 step before" in result.messages[-1]
    assert job(num_ranks, *arguments).code == 0
    quick = ("--env-factory", "stopping_envs:Counting", *arguments[2:-2])
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(job.collect(None, *quick, out="quick.h5")))
