"""Signals while a connection is open.

On the root the program's own handlers are called between two exchanges, never during one.  A handler that raises, as
that of Ctrl-C does, would leave half an exchange behind, and the other ranks would hang.  On the other ranks signals do
nothing: launchers send them to all ranks, and the trainer on the root decides what a signal means.
"""

import os
import signal
import sys
import threading

# `signal.getsignal` turns the answer into an enum, which takes 40 times as long.  Typeshed does not have `_signal`.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from types import FrameType
from typing import NoReturn

from gymnasium.error import AlreadyPendingCallError

from mpi_rollout.errors import SignalInterrupt
from mpi_rollout.process.start import HeardInC, die_by_signal, end_after_loss
from mpi_rollout.process.turns import POLL_S, CallTurns

# People, launchers and batch systems stop programs by these.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INT, TERM, USR1 = map(int, STOP_SIGNALS)
SAME_S = 1.0  # Launchers deliver one Ctrl-C twice: a signal that comes so soon is not a second one.
UNHEEDED_S = 2.0  # The time that the main thread has to end a run after the second one.

Handler = Callable[[int, FrameType | None], object] | int | None


class Cut(SignalInterrupt):
    """The envs' step that is under way on the root ends: it was interrupted twice."""


class Handlers:
    """The signal handlers of this process: they call the program's own handlers, but not during an exchange."""

    def __init__(self) -> None:
        self.guard: Interrupts | None = None  # The connection whose exchange is under way.
        self.pending: list[tuple[int, FrameType | None]] = []  # Signals that came during that exchange.
        self.num_raised = self._num_watching = 0  # How often a handler of the program raised; connections.
        self._pending_since_s = 0.0
        self.seen: tuple[Handler, ...] = ()  # The handlers that were set at the last look.
        self.owner = 0  # The process that `exit_by_signal` ends.
        self.heed = self._heed  # One object, so that it is known again.
        self._own: dict[int, Callable[[int, FrameType | None], object]] = {}

    def watch(self) -> None:
        """Count another connection with a guard."""
        self._num_watching += 1

    def unwatch(self) -> None:
        """Count one connection less.  After the last one, give the program its handlers back.

        They stay known here: code that has saved `heed` meanwhile may set it again later.
        """
        self._num_watching -= 1
        for number, handler in self._own.items() if not self._num_watching else ():
            if getsignal(number) is self.heed and is_main_thread():
                signal.signal(number, signal.SIG_DFL if handler is exit_by_signal else handler)

    def look(self) -> None:
        """Replace the handlers that the program has set since the last look."""
        for number in (INT, TERM, USR1):
            handler = getsignal(number)
            if handler is not self.heed and callable(handler):
                self._own[number] = handler
                signal.signal(number, self.heed)
        self.seen = getsignal(INT), getsignal(TERM), getsignal(USR1)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if self.guard is None:
            self._call(number, frame)
            return
        if not self.pending:
            self._pending_since_s = monotonic()
        self.pending.append((number, frame))
        if monotonic() - self._pending_since_s < SAME_S:
            return
        if self._own[number] is exit_by_signal:  # The exchange may never end: a rank hangs, or is gone.
            die_by_signal(number)
        if self.guard.is_in_envs():
            raise Cut

    def _call(self, number: int, frame: FrameType | None) -> None:
        self.num_raised += 1
        self._own[number](number, frame)
        self.num_raised -= 1  # It did not raise.

    def catch_up(self) -> None:
        """Call the handlers of the signals that came during an exchange, until one raises."""
        pending, self.pending = self.pending, []
        for number, frame in pending:
            self._call(number, frame)


HANDLERS = Handlers()  # One for the process, which has one handler for each signal.
os.register_at_fork(after_in_child=lambda: setattr(HANDLERS, "guard", None))  # The child has no part in the exchange.


class Interrupts:
    """A guard around each call of a connection: `with interrupts:`.  Signals, and calls of other threads, wait.

    A second interrupt, after a second or more, cuts the step of the root's own envs short.  The step has then failed.
    `is_in_envs` tells whether these are stepping.
    """

    def __init__(self, is_in_envs: Callable[[], bool]) -> None:
        self.is_in_envs, self.calls = is_in_envs, CallTurns()
        self._num_raised = HANDLERS.num_raised
        self._main_thread = threading.main_thread().ident
        HANDLERS.watch()

    def close(self) -> None:
        """Stop guarding."""
        HANDLERS.unwatch()

    @property
    def is_broken(self) -> bool:
        """Whether a call was cut in the middle: nobody knows what the ranks wait for."""
        return self.calls.is_broken

    def note_cut(self) -> None:
        """Note that a call was cut in the middle."""
        self.calls.is_broken = True

    @property
    def has_interrupted(self) -> bool:
        """Tell whether a handler has raised since `forget`."""
        return self._num_raised != HANDLERS.num_raised

    def forget(self) -> None:
        """Forget interrupts and unfinished exchanges: all is well again."""
        self._num_raised, self.calls.is_broken = HANDLERS.num_raised, False

    def __enter__(self) -> None:
        calls, thread = self.calls, threading.get_ident()
        if calls.owner == thread:
            raise AlreadyPendingCallError(
                "a call while another one of the same thread is under way, as from a signal handler; call again when "
                "that has returned",
                "call",
            )
        if thread == self._main_thread:  # Handlers run in that one, and do not interrupt others.
            handlers = getsignal(INT), getsignal(TERM), getsignal(USR1)
            if handlers != HANDLERS.seen:  # A notebook sets them for each cell.
                HANDLERS.look()
            HANDLERS.guard = self  # From here on, a signal leaves no turn taken that nobody gives back.
        if calls.is_awaited or not calls.busy.acquire(False):
            self._await_turn()
        calls.owner = thread

    def _await_turn(self) -> None:
        """Wait for the call of another thread; the handlers of signals run meanwhile."""
        while not self.calls.wait(POLL_S):
            if HANDLERS.pending and is_main_thread():
                HANDLERS.guard = None
                HANDLERS.catch_up()
                HANDLERS.guard = self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        calls = self.calls
        if kind is not None and not issubclass(kind, Exception):
            calls.is_broken = True
        thread, calls.owner = calls.owner, 0
        calls.busy.release()
        if thread == self._main_thread:
            HANDLERS.guard = None
            if HANDLERS.pending:
                HANDLERS.catch_up()

    def are_free_within(self, seconds: float) -> bool:
        """Wait until no other thread calls; return whether that was so in time."""
        if not self.calls.wait(seconds):
            return False
        self.calls.busy.release()
        return True


def is_main_thread() -> bool:
    """Tell whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


def exit_by_signals() -> None:
    """Let SIGTERM and SIGUSR1 end the program as `sys.exit` does while a connection is open: a file is then completed.

    Handlers of the program's own stay.  Open MPI's mpirun sends SIGTERM to the ranks after Ctrl-C.  A second signal, a
    second later, ends the program at once.
    """
    for number in (TERM, USR1):
        if is_main_thread() and getsignal(number) == signal.SIG_DFL:
            signal.signal(number, exit_by_signal)
            HANDLERS.owner = os.getpid()


def exit_by_signal(number: int, _frame: FrameType | None) -> None:
    """Exit with the code that a shell gives to a program which the signal has ended."""
    if os.getpid() != HANDLERS.owner:  # A child that the program has forked.
        die_by_signal(number)
    sys.exit(128 + number)


def raise_on_signals() -> None:
    """Let the signals that ask to stop raise SignalInterrupt, with the name of the signal."""
    owner = os.getpid()

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        if os.getpid() != owner:
            die_by_signal(number)
        raise SignalInterrupt(signal.Signals(number).name)

    for number in STOP_SIGNALS:
        if getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


@contextmanager
def unheeded() -> Iterator[None]:
    """Let signals do nothing in this process.  Call it in the main thread.

    Programs that an env starts would inherit the system's way to ignore signals, and could not be stopped.
    """
    owner = os.getpid()
    before: dict[signal.Signals, Handler] = {}

    def ignore(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # A child that an env has forked.
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)

    for number in STOP_SIGNALS:
        before[number] = signal.signal(number, ignore) or signal.SIG_DFL
        signal.siginterrupt(number, False)  # The C code of envs is not interrupted.
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class HeardTwice(HeardInC):
    """`with HeardTwice(end):` calls `end` in a thread after a second signal that the main thread does not heed.

    That may be amid a write to a disk that hangs.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end, self._is_over, self._first_s = end, False, 0.0

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        super().__exit__()

    def _heed(self, number: int) -> None:
        end_after_loss(number)
        self._first_s = self._first_s or monotonic()
        if monotonic() - self._first_s > SAME_S:
            sleep(UNHEEDED_S)
            if not self._is_over:
                self._end()
