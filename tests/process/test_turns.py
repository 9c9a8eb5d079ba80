"""Calls of threads take turns."""

import signal
import threading

import pytest
from gymnasium.error import AlreadyPendingCallError

from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.process.turns import CallTurns


@pytest.fixture
def interrupts():
    guard = Interrupts(lambda: False)
    yield guard
    guard.close()


def test_a_thread_that_calls_on_and_on_keeps_no_other_out(interrupts: Interrupts):
    is_over, is_in = threading.Event(), threading.Event()

    def call_on() -> None:
        while not is_over.is_set():
            with interrupts:
                is_in.set()

    thread = threading.Thread(target=call_on)
    thread.start()
    is_in.wait()
    for _ in range(100):
        with interrupts:
            assert not interrupts.calls.is_of_another_thread
    is_over.set()
    thread.join()
    assert interrupts.calls.owner == 0


def test_a_call_from_within_a_call_is_refused_and_leaves_that_one_whole(interrupts: Interrupts):
    with interrupts:
        with pytest.raises(AlreadyPendingCallError, match="of the same thread is under way"), interrupts:
            pass
        assert interrupts.calls.owner == threading.get_ident()
    with interrupts:
        pass


def test_connections_of_the_same_ranks_wait_for_each_other():
    calls = CallTurns()
    first, second = Interrupts(lambda: False, calls), Interrupts(lambda: False, calls)
    with first:
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(second.are_free_within(0.01)))
        thread.start()
        thread.join()
        assert waiting == [False]
    assert second.are_free_within(0)
    first.close()
    second.close()


def test_ctrl_c_is_heard_while_another_threads_call_is_awaited(interrupts: Interrupts):
    has_begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with interrupts:
            has_begun.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has_begun.wait()
    threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt), interrupts:
        pass
    assert interrupts.calls.is_of_another_thread
    may_end.set()
    thread.join()
    with interrupts:
        pass


def test_an_exchange_that_is_cut_breaks_all_connections_of_its_ranks():
    calls = CallTurns()
    first, second = Interrupts(lambda: False, calls), Interrupts(lambda: False, calls)
    with pytest.raises(SystemExit), first:
        raise SystemExit
    assert second.is_broken
    second.forget()
    assert not first.is_broken
    first.close()
    second.close()
