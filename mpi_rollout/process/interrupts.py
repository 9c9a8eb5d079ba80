"""Signals while a connection is open.

On the root the program's own handlers are called between two exchanges, never amid one: a handler that raises, as that
of Ctrl-C does, would leave half an exchange behind and the other ranks hanging.  On the other ranks nothing happens:
launchers send signals to all ranks, and what one means is for the trainer to decide.
"""

import os
import signal
import threading
from _signal import getsignal  # signal.getsignal turns the answer into an enum, which takes 40 times as long.
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from mpi_rollout.errors import SignalInterrupt

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # By these people, launchers and batch systems ask.
INT, TERM, USR1 = map(int, STOP_SIGNALS)
SAME_S = 1.0  # Launchers deliver one Ctrl-C twice: what comes so soon is no second one.


class Cut(SignalInterrupt):
    """Ends the envs' step that is under way on the root, which was interrupted twice."""


class Handlers:
    """What the signals call in this process: the program's own handlers, but not amid an exchange.

    Attributes
    ----------
    guard
        Whose exchange is under way.
    asked
        Signals that came amid it.
    num_raised
        How often a handler of the program raised.
    seen
        What the signals called when this was looked at last.
    """

    def __init__(self):
        self.guard: Interrupts | None = None
        self.asked: list[tuple[int, Any]] = []
        self.num_raised = self._num_watching = 0
        self._asked_at = 0.0
        self.seen: tuple[Any, ...] = ()
        self.heed = self._heed  # One object, so that it is known again.
        self._own: dict[int, Callable[[int, Any], Any]] = {}

    def watch(self) -> None:
        """Another connection has a guard."""
        self._num_watching += 1

    def unwatch(self) -> None:
        """One has none any more.  When none is left, give the program its handlers back.

        They stay known here: who has saved `heed` meanwhile may put it back later.
        """
        self._num_watching -= 1
        for number, handler in self._own.items() if not self._num_watching else ():
            if getsignal(number) is self.heed and is_main_thread():
                signal.signal(number, handler)

    def look(self) -> None:
        """Stand before the handlers that the program has set since the last look."""
        for number in (INT, TERM, USR1):
            handler = getsignal(number)
            if handler is not self.heed and callable(handler):
                self._own[number] = handler
                signal.signal(number, self.heed)
        self.seen = getsignal(INT), getsignal(TERM), getsignal(USR1)

    def _heed(self, number: int, frame: Any) -> None:
        if self.guard is None:
            self._call(number, frame)
            return
        if not self.asked:
            self._asked_at = monotonic()
        self.asked.append((number, frame))
        if monotonic() - self._asked_at >= SAME_S and self.guard.is_in_envs():
            raise Cut

    def _call(self, number: int, frame: Any) -> None:
        self.num_raised += 1
        self._own[number](number, frame)
        self.num_raised -= 1  # It has not raised.

    def catch_up(self) -> None:
        """Call the handlers of the signals that came amid an exchange, until one raises."""
        asked, self.asked = self.asked, []
        for number, frame in asked:
            self._call(number, frame)


HANDLERS = Handlers()  # A process has one handler for each signal.
os.register_at_fork(after_in_child=lambda: setattr(HANDLERS, "guard", None))  # The child has no part in the exchange.


class Interrupts:
    """A guard around the exchanges of a connection: `with interrupts:`.  Signals wait for its end.

    Who interrupts again after a second has the root's own envs cut short amid their step, which has then failed.

    Parameters
    ----------
    is_in_envs
        Tells whether the root's own envs are at work.

    Attributes
    ----------
    is_broken
        An exchange was left half done after all: nobody knows what the ranks wait for.
    """

    def __init__(self, is_in_envs: Callable[[], bool]):
        self.is_in_envs = is_in_envs
        self.is_broken = False
        self._num_raised = HANDLERS.num_raised
        HANDLERS.watch()

    def close(self) -> None:
        """Guard no more."""
        HANDLERS.unwatch()

    @property
    def has_interrupted(self) -> bool:
        """A handler has raised since `forget`."""
        return self._num_raised != HANDLERS.num_raised

    def forget(self) -> None:
        """All is well again."""
        self._num_raised, self.is_broken = HANDLERS.num_raised, False

    def __enter__(self) -> None:
        if not is_main_thread():  # Handlers are called in that one: they do not come amid what this thread does.
            return
        if (getsignal(INT), getsignal(TERM), getsignal(USR1)) != HANDLERS.seen:  # As for each cell of a notebook.
            HANDLERS.look()
        HANDLERS.guard = self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.is_broken = True
        if HANDLERS.guard is self:
            HANDLERS.guard = None
            if HANDLERS.asked:
                HANDLERS.catch_up()


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def unheeded() -> Iterator[None]:
    """Let signals do nothing in this process.  For the main thread.

    They are not ignored as the system does it: programs that an env starts would inherit that, and could not be ended.
    """
    owner = os.getpid()
    before: dict[int, Any] = {}

    def ignore(number: int, _frame: Any) -> None:
        if os.getpid() != owner:  # A child that an env has forked.
            signal.signal(number, before[number])
            os.kill(os.getpid(), number)

    for number in STOP_SIGNALS:
        before[number] = signal.signal(number, ignore) or signal.SIG_DFL
        signal.siginterrupt(number, False)  # C code of envs need not know.
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
