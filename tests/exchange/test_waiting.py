"""Waits that leave the core to others: few looks, and none that comes much too late; when ranks wait in which way."""

import json
import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import Job, assert_same_bytes, datasets

from mpi_rollout.exchange import waiting
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.exchange.waiting import (
    CROWDED,
    FIRST_REST_S,
    FIRST_SHARE,
    LEAST_SHARE,
    LONGEST_REST_S,
    LONGEST_S,
    MANY,
    NEXT_SHARE,
    NUM_REMEMBERED,
    SHORTEST_S,
    WINDOW_S,
    Adaptation,
    Wait,
    ranks_per_core,
    way_to_wait,
)
from mpi_rollout.process.host import ProcessorTime, num_usable_cores, processor_time

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


def wait(clock: Clock, sleeping: Wait, seconds: float) -> tuple[int, float]:
    """How often a wait for something that comes after some seconds looks, and how much too late the last look is."""
    looks, over_at = clock.looks, clock.now + seconds
    sleeping.all([Request(clock, over_at)])
    return clock.looks - looks, clock.now - over_at


@pytest.mark.parametrize("seconds", [0.003, 0.02, 1.0])
def test_waits_that_take_long_each_time_need_few_looks_and_are_seldom_too_late(clock: Clock, seconds: float):
    sleeping = Wait()
    for _ in range(NUM_REMEMBERED + 1):
        looks, late_s = wait(clock, sleeping, seconds)
    first_s = min(FIRST_SHARE * seconds, LONGEST_S)
    assert looks <= 8 + math.log(seconds / first_s) / math.log(1 + NEXT_SHARE)
    assert late_s <= NEXT_SHARE * seconds + 2 * SHORTEST_S


def test_one_long_wait_does_not_delay_the_next_short_one(clock: Clock):
    sleeping = Wait()
    for _ in range(10):
        wait(clock, sleeping, 0.001)
    wait(clock, sleeping, 5.0)
    _, late_s = wait(clock, sleeping, 0.001)
    assert late_s <= NEXT_SHARE * 0.001 + 2 * SHORTEST_S


def test_when_waits_get_short_the_sleeps_do_too(clock: Clock):
    sleeping = Wait()
    for _ in range(10):
        wait(clock, sleeping, 1.0)
    late = [wait(clock, sleeping, 0.0002)[1] for _ in range(12)]
    assert all(later <= max(0.6 * sooner, 2 * SHORTEST_S) for sooner, later in pairwise([LONGEST_S / 0.6, *late]))


def test_what_is_over_is_told_by_its_index(clock: Clock):
    requests = [Request(clock, 0.5), Request(clock, 0.2), Request(clock, 0.2)]
    sleeping = Wait()
    assert sleeping.any(requests) == 1 and 0.2 <= clock.now < 0.3
    assert sleeping.some(requests) == [1, 2] and clock.now < 0.3
    sleeping.all(requests)
    assert 0.5 <= clock.now < 0.6


def test_a_spinning_rank_leaves_the_waiting_to_mpi():
    calls: list[tuple] = []
    request = SimpleNamespace(
        Waitall=lambda requests: calls.append(("Waitall", *requests)),
        Waitany=lambda requests: 1,
        Waitsome=lambda requests: [0, 1] if len(requests) == 2 else None,  # None: no request is under way.
    )
    spinning = Wait(lambda: False)
    spinning.all([request, 5])
    assert calls == [("Waitall", request, 5)]
    assert spinning.any([request, 5]) == 1
    assert spinning.some([request, 5]) == [0, 1] and spinning.some([request]) == []


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([("a", {0, 1}, None)] * 2, 1),
        ([("a", {0, 1}, None)] * 8, 4),
        ([("a", {0}, None), ("a", {1}, None)] * 3, 3),  # Bound to cores of their own.
        ([("a", {0, 1}, 1.5)] * 6, 4),
        ([("a", {0, 1, 2, 3}, 2.0)] * 7, 3.5),
        ([("a", {0}, None), *[("b", {0}, None)] * 4], 4),
    ],
)
def test_ranks_per_core_are_those_of_the_fullest_host_by_its_own_cores_and_quota(ranks: list, expected: float):
    assert ranks_per_core(ranks) == expected


class Processor:
    """The share of a core that a thread gets, as the test sets it."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch):
        self.share, self.ran_s, self.delayed_s, self._clock = 1.0, 0.0, 0.0, clock
        monkeypatch.setattr(waiting, "processor_time", lambda: ProcessorTime(self.ran_s, self.delayed_s))

    def spend(self, seconds: float) -> None:
        self._clock.now += seconds
        self.ran_s += self.share * seconds
        self.delayed_s += (1 - self.share) * seconds


@pytest.fixture
def processor(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Processor:
    return Processor(clock, monkeypatch)


def test_a_rank_is_short_of_processor_time_by_the_last_window(processor: Processor):
    watch = Adaptation()
    for share, expected in ((1.0, False), (LEAST_SHARE - 0.1, True), (LEAST_SHARE + 0.1, False)):
        processor.share = share
        processor.spend(0.5 * WINDOW_S)
        watch.is_short()  # Amid the window nothing changes.
        processor.spend(0.6 * WINDOW_S)
        assert watch.is_short() is expected


def test_envs_that_sleep_are_not_short_of_processor_time(processor: Processor, clock: Clock):
    watch = Adaptation()
    processor.spend(0.01)
    clock.pass_by(10 * WINDOW_S)
    assert not watch.is_short()


def test_where_the_system_does_not_tell_no_rank_is_short(monkeypatch: pytest.MonkeyPatch, clock: Clock):
    monkeypatch.setattr(waiting, "processor_time", lambda: None)
    watch = Adaptation()
    clock.pass_by(2 * WINDOW_S)
    assert not watch.is_short()


def changes(adaptation: Adaptation, processor: Processor, seconds: float) -> list[tuple[bool, float]]:
    """How a rank waits in turn, and for how long each time."""
    found: list[list] = []
    for _ in range(round(seconds / 0.05)):
        processor.spend(0.05)
        sleeps = adaptation.sleeps()
        if not found or found[-1][0] != sleeps:
            found.append([sleeps, 0.0])
        found[-1][1] += 0.05
    return [(sleeps, length) for sleeps, length in found]


def test_a_rank_on_a_shared_core_sleeps_and_seldom_tries_to_spin(processor: Processor):
    processor.share = 0.5
    found = changes(Adaptation(), processor, 300.0)
    rests = [length for sleeps, length in found if sleeps]
    tries = [length for sleeps, length in found if not sleeps]
    assert rests[0] < FIRST_REST_S + 0.2 and max(rests) <= LONGEST_REST_S + 0.2
    assert min(tries[:-1]) > WINDOW_S / 2 and max(tries) < 2 * WINDOW_S and sum(tries) < 0.02 * 300.0
    assert all(later > 1.7 * sooner for sooner, later in pairwise(rests[:5]))


def test_a_rank_spins_again_when_its_core_is_quiet_and_then_does_not_rest_as_long(processor: Processor):
    adaptation = Adaptation()
    processor.share = 0.5
    changes(adaptation, processor, 100.0)
    processor.share = 1.0
    found = changes(adaptation, processor, 100.0)
    assert found[-1][0] is False and found[-1][1] > 100.0 - LONGEST_REST_S - 1.0
    processor.share = 0.5
    found = changes(adaptation, processor, 1.0 + FIRST_REST_S + WINDOW_S)
    assert [sleeps for sleeps, _ in found] == [False, True, False, True][: len(found)] and len(found) >= 3


def test_processor_time_is_what_the_system_says(tmp_path: Path):
    (tmp_path / "schedstat").write_text("3000000000 1000000000 7\n")
    found = processor_time(str(tmp_path / "schedstat"))
    assert found == ProcessorTime(3.0, 1.0) and found.share == 0.75
    assert found.since(ProcessorTime(2.0, 1.0)).share == 1.0 and ProcessorTime(0.0, 0.0).share == 1.0
    assert processor_time(str(tmp_path / "none")) is None


@pytest.mark.mpi(3)
def test_data_do_not_depend_on_how_and_how_often_ranks_change_their_way_to_wait(job: Job, num_ranks: int):
    run = ("--env", "CartPole-v1", "--num-envs", "7", "--num-steps", "150", "--seed", "3")
    ways = [(), ("--root-envs", "0"), ("--num-groups", "2"), ("--batch-size", "1"), ("--measure-limit",)]
    lengths = [("--fragment-length", "1" if number % 2 else "3") for number in range(len(ways))]
    commands = [(*run, *way, *lengths[number], "--out", f"{number}.h5") for number, way in enumerate(ways)]
    codes, num_changes = job.train(num_ranks, "amid_sharing", "runs", commands)
    assert codes == [0] * len(ways) and num_changes > 30
    expected = datasets(job.collect(None, *run))
    for number in range(len(ways)):
        assert_same_bytes(datasets(job.folder / f"{number}.h5"), expected)


@pytest.mark.parametrize(("ratio", "way"), [(1, "adapt"), (MANY - 0.1, "spin"), (MANY, "sleep"), (20, "sleep")])
def test_the_root_warns_of_many_ranks_for_each_core(ratio: float, way: str, monkeypatch, capfd):
    monkeypatch.setattr(waiting, "ranks_per_core", lambda ranks: ratio)
    assert way_to_wait(SingleRankComm()) == way
    told = (
        f"mpi_rollout: {ratio} ranks share each core, which is for envs that wait themselves; else start fewer ranks\n"
    )
    assert capfd.readouterr().err == told * (way == "sleep")


@pytest.mark.mpi(8)
def test_many_ranks_for_each_core_sleep(job: Job, num_ranks: int):
    result = job(num_ranks, *SHORT)
    assert result.code == 0, result.err
    is_crowded = num_ranks >= MANY * num_usable_cores()
    assert json.loads(result.out)["slept"] is is_crowded
    assert result.err.count(CROWDED) == is_crowded


@pytest.mark.mpi(2)
def test_two_ranks_sleep_where_that_is_chosen(job: Job, num_ranks: int):
    result = job(num_ranks, *SHORT, "--wait", "sleep")
    assert json.loads(result.out)["slept"] is True and CROWDED not in result.err
