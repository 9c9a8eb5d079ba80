"""Waits that leave the core to others: few looks, and none that comes much too late."""

import json
import math
from itertools import pairwise

import pytest
from conftest import Job

from mpi_rollout import waiting
from mpi_rollout.cores import num_usable_cores
from mpi_rollout.waiting import (
    FIRST_SHARE,
    LONGEST_S,
    MANY,
    NEXT_SHARE,
    NUM_REMEMBERED,
    SHORTEST_S,
    YIELDING_S,
    Sleeping,
    is_crowded,
)

LOOK_S = 2e-6
SHORT = ("--env", "CartPole-v1", "--num-envs", "8", "--num-steps", "2", "--json", "--out", "run.h5")


class Clock:
    """Time that passes by sleeping, and a little by looking."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.looks = 0.0, 0
        monkeypatch.setattr(waiting, "perf_counter", lambda: self.now)
        monkeypatch.setattr(waiting, "sleep", self.pass_by)
        monkeypatch.setattr(waiting.os, "sched_yield", lambda: self.pass_by(LOOK_S))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Request:
    """One that is over at some time."""

    def __init__(self, clock: Clock, over_at: float):
        self.clock, self.over_at, self.is_active = clock, over_at, True

    def Test(self) -> bool:  # noqa: N802  As mpi4py has it.
        self.clock.looks += 1
        self.clock.pass_by(LOOK_S)
        return self.clock.now >= self.over_at

    @staticmethod
    def Testany(requests: list["Request"]) -> tuple[int, bool]:  # noqa: N802
        over = [index for index, request in enumerate(requests) if request.Test()]
        return (over[0], True) if over else (-1, False)

    @staticmethod
    def Testsome(requests: list["Request"]) -> list[int] | None:  # noqa: N802
        active = [index for index, request in enumerate(requests) if request.is_active]
        over = [index for index in active if requests[index].Test()]
        for index in over:
            requests[index].is_active = False
        return over if active else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def wait(clock: Clock, sleeping: Sleeping, seconds: float) -> tuple[int, float]:
    """How often a wait for something that comes after some seconds looks, and how much too late the last look is."""
    looks, over_at = clock.looks, clock.now + seconds
    sleeping.one(Request(clock, over_at))
    return clock.looks - looks, clock.now - over_at


@pytest.mark.parametrize("seconds", [0.003, 0.02, 1.0])
def test_waits_that_take_long_each_time_need_few_looks_and_are_seldom_too_late(clock: Clock, seconds: float):
    sleeping = Sleeping()
    for _ in range(NUM_REMEMBERED + 1):
        looks, late_s = wait(clock, sleeping, seconds)
    first_s = min(FIRST_SHARE * seconds, LONGEST_S)
    assert looks <= 8 + math.log(seconds / first_s) / math.log(1 + NEXT_SHARE)
    assert late_s <= NEXT_SHARE * seconds + 2 * SHORTEST_S


def test_short_waits_end_when_what_they_wait_for_is_there(clock: Clock):
    sleeping = Sleeping()
    for _ in range(20):
        _, late_s = wait(clock, sleeping, 0.9 * YIELDING_S)
        assert late_s <= 3 * LOOK_S


def test_one_long_wait_does_not_delay_the_next_short_one(clock: Clock):
    sleeping = Sleeping()
    for _ in range(10):
        wait(clock, sleeping, 0.001)
    wait(clock, sleeping, 5.0)
    _, late_s = wait(clock, sleeping, 0.001)
    assert late_s <= NEXT_SHARE * 0.001 + 2 * SHORTEST_S


def test_when_waits_get_short_the_sleeps_do_too(clock: Clock):
    sleeping = Sleeping()
    for _ in range(10):
        wait(clock, sleeping, 1.0)
    late = [wait(clock, sleeping, 0.0002)[1] for _ in range(12)]
    assert all(later <= max(0.6 * sooner, 2 * SHORTEST_S) for sooner, later in pairwise([LONGEST_S / 0.6, *late]))


def test_what_is_over_is_told_by_its_index(clock: Clock):
    requests = [Request(clock, 0.5), Request(clock, 0.2), Request(clock, 0.2)]
    sleeping = Sleeping()
    assert sleeping.any(requests) == 1 and 0.2 <= clock.now < 0.3
    assert sleeping.some(requests) == [1, 2] and clock.now < 0.3
    sleeping.all(requests)
    assert 0.5 <= clock.now < 0.6


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([("a", {0, 1}, None)] * 7, False),
        ([("a", {0, 1}, None)] * 8, True),
        ([("a", {0}, None), ("a", {1}, None)] * 3, False),  # Bound to cores of their own.
        ([("a", {0}, None)] * 4, True),
        ([("a", {0}, None), ("b", {0}, None)] * 3, False),
        ([("a", {0, 1}, 1.5)] * 6, True),
        ([("a", {0, 1, 2, 3}, 2.0)] * 7, False),
        ([("a", {0, 1, 2, 3}, 2.0)] * 8, True),
        ([("a", {0}, None), *[("b", {0}, None)] * 4], True),
    ],
)
def test_a_host_has_many_ranks_for_each_core_by_its_own_cores_and_quota(ranks: list, expected: bool):
    assert is_crowded(ranks) is expected


@pytest.mark.mpi(2, 8)
def test_ranks_sleep_where_there_are_many_for_each_core(job: Job, num_ranks: int):
    result = job(num_ranks, *SHORT)
    assert result.code == 0, result.err
    assert json.loads(result.out)["slept"] is (num_ranks >= MANY * num_usable_cores())


@pytest.mark.mpi(2)
@pytest.mark.parametrize("wait", ["spin", "sleep"])
def test_how_ranks_wait_can_be_chosen(job: Job, num_ranks: int, wait: str):
    result = job(num_ranks, *SHORT, "--wait", wait)
    assert json.loads(result.out)["slept"] is (wait == "sleep")
