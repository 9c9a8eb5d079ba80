"""Calls of threads take turns."""

import signal
import threading

import pytest
from gymnasium.error import AlreadyPendingCallError

from mpi_rollout.process.interrupts import Interrupts


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


def test_a_thread_that_waits_for_the_call_of_another_one_hears_that_it_goes_on(interrupts: Interrupts):
    with interrupts:
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(interrupts.are_free_within(0.01)))
        thread.start()
        thread.join()
        assert waiting == [False]
    assert interrupts.are_free_within(0)


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


def test_an_exchange_that_is_cut_breaks_the_connection_until_all_is_well_again(interrupts: Interrupts):
    with pytest.raises(SystemExit), interrupts:
        raise SystemExit
    assert interrupts.is_broken
    interrupts.forget()
    assert not interrupts.is_broken
