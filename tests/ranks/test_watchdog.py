"""A call that takes too long is named and interrupted, and others are left alone."""

import faulthandler
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import pytest

from mpi_rollout.envs.faults import EnvTimeout
from mpi_rollout.ranks import watchdog
from mpi_rollout.ranks.watchdog import SLACK_S, Watchdog, Work

pytestmark = pytest.mark.timeout(0)  # pytest's own alarm would be taken for one of theirs.

TIMEOUT_S, LONG_S = 0.05, 30.0


@pytest.fixture(autouse=True)
def wound_up(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times after which the process would be ended, for each time that the thread has put that off."""
    times: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda timeout_s, **_: times.append(timeout_s))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: times.append(0.0))
    return times


class Watched:
    """A watchdog, what it looks at, and what it says; `look` may change what it looks at."""

    def __init__(
        self,
        work: Work | None,
        timeout_s: float = TIMEOUT_S,
        look: Callable[[int], Work | None] | None = None,
        note_s: float = inf,
    ):
        self.work, self.num_looks = work, 0
        self.said: list[str] = []
        self.has_given_up = threading.Event()
        self._look_at = look
        self.watchdog = Watchdog(self._look, timeout_s, self.said.append, self._give_up, note_s)

    def _look(self) -> Work | None:
        self.num_looks += 1
        return self._look_at(self.num_looks) if self._look_at else self.work

    def _give_up(self, why: str) -> None:
        self.said.append(why)
        self.has_given_up.set()


@contextmanager
def watched(*arguments: object, **options: object) -> Iterator[Watched]:
    watched = Watched(*arguments, **options)
    try:
        yield watched
    finally:
        watched.watchdog.close()


def work(key: object = 1, patience: float = 1.0) -> Work:
    return Work(key, lambda: f"step 3: env {key}", patience)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize(("patience", "limit"), [(1.0, "0.05"), (2.0, "0.1")])
def test_a_call_that_takes_too_long_is_named_with_its_place_and_interrupted(
    patience: float, limit: str, wound_up: list
):
    with watched(work(patience=patience)) as each, pytest.raises(EnvTimeout, match=f"^took longer than {limit} s$"):
        time.sleep(LONG_S)
    [words] = each.said
    assert words.startswith(f"step 3: env 1: takes longer than {limit} s, in\n") and "time.sleep(LONG_S)" in words
    assert not each.has_given_up.is_set() and max(wound_up) == patience * TIMEOUT_S + SLACK_S


def test_calls_that_follow_each_other_are_not_interrupted():
    with watched(None, look=lambda number: work(number // 2)) as each:
        wait_until(lambda: each.num_looks > 12)
    assert each.said == []


def test_nobody_is_interrupted_while_no_env_is_at_work(wound_up: list):
    with watched(None) as each:
        wait_until(lambda: each.num_looks > 12)
    assert each.said == [] and {*wound_up} == {TIMEOUT_S + SLACK_S, 0.0} and wound_up[-1] == 0.0


def test_a_call_that_is_waited_for_is_said_once_with_its_rounded_limit():
    with watched(work(), timeout_s=66.7383, note_s=0.01) as each:
        wait_until(lambda: len(each.said) > 0)
        each.work = work(2)  # Another one that takes as long.
        num_looks = each.num_looks
        wait_until(lambda: each.num_looks > num_looks + 2)
    [words] = each.said
    assert words.startswith("step 3: env 1: is under way for ") and words.endswith(", and is interrupted after 66.7 s")


def test_a_call_that_has_just_ended_is_not_interrupted():
    """It is over when the signal comes."""
    is_over = threading.Event()

    def look(number: int) -> Work | None:
        if threading.current_thread() is threading.main_thread():
            is_over.set()
            return work(2)
        return None if is_over.is_set() else work(1)

    with watched(None, look=look) as each:
        wait_until(is_over.is_set)
    assert len(each.said) == 1 and "takes longer" in each.said[0]


def test_a_call_that_does_not_come_out_ends_the_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "COME_OUT_S", 0.05)
    with watched(work()) as each:
        with pytest.raises(EnvTimeout):
            time.sleep(LONG_S)
        each.has_given_up.wait(LONG_S)
    assert each.said[1].startswith("step 3: env 1: cannot be interrupted; ending the job\n")


def test_another_thread_than_the_main_one_is_not_interrupted():
    found: list[Watched] = []

    def step() -> None:
        with watched(work()) as each:
            found.append(each)
            each.has_given_up.wait(LONG_S)

    before = signal.getsignal(signal.SIGALRM)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert "cannot be interrupted; ending the job\n" in found[0].said[0] and "has_given_up.wait" in found[0].said[0]
    assert signal.getsignal(signal.SIGALRM) == before


def test_who_had_the_alarm_before_has_it_again_and_hears_others_meanwhile():
    alarms: list[int] = []

    def hear(number: int, _: object) -> None:
        alarms.append(number)

    before = signal.signal(signal.SIGALRM, hear)
    try:
        with watched(None):
            assert signal.getsignal(signal.SIGALRM) != hear
            signal.raise_signal(signal.SIGALRM)
        assert alarms == [signal.SIGALRM] and signal.getsignal(signal.SIGALRM) == hear
    finally:
        signal.signal(signal.SIGALRM, before)
