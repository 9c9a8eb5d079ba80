"""Whose turn it is, where several connections share their ranks."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gymnasium.error import AlreadyPendingCallError

from mpi_rollout.exchange.orders import Command
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.train.call_state import CallState
from mpi_rollout.train.steps import Steps

if TYPE_CHECKING:
    from mpi4py import MPI

Endpoint = Any  # One end of a connection: a `RootEnd` on the root, a `Worker` elsewhere.


class Turns:
    """The open connections of a group of ranks, as each of these ranks has them.

    The ranks await the orders of one connection at a time.  When the root goes on with another connection, it says so
    by the one whose orders the ranks await.  So a single connection costs nothing more, and of several the one that has
    the turn is as quick.

    Attributes
    ----------
    open
        By number, the `RootEnd`s on the root, the `Worker`s elsewhere, in the order in which they were opened.
    holder
        The one whose orders the ranks await.
    entering
        The connection that is being opened on the root, while others are open.
    kept
        Contexts that the root leaves when all connections are closed.
    """

    def __init__(self, comm: "MPI.Intracomm"):
        self.comm = comm
        self.entering: Any = None
        self.kept = ExitStack()
        self.open: dict[int, Endpoint] = {}
        self.holder: Endpoint = None
        self._num_opened = 0

    def add(self, one: Endpoint) -> None:
        """Add a connection; the first has the turn.  On all ranks."""
        self._num_opened += 1
        self.open[self._num_opened] = one
        self.holder = self.holder or one

    def remove(self, one: Endpoint) -> None:
        """Forget a connection that had the turn and is closed; the last of the others has it then.  On all ranks."""
        self.open = {number: other for number, other in self.open.items() if other is not one}
        self.holder = next(reversed(self.open.values()), None)

    def serve(self) -> int:
        """Obey the root's orders until all connections are closed; return the exit code of the last."""
        while True:
            command, code = self.holder.serve()
            if command == Command.SWITCH:
                self.holder = self.open[code]
                continue
            self.holder.exchanges.free()
            self.remove(self.holder)
            if not self.open:
                return code

    def give(self, end: "RootEnd", is_closing: bool = False) -> None:
        """Let the ranks await the orders of this end, not those of the holder.  On the root.

        Raises
        ------
        AlreadyPendingCallError
            The envs of the connection that has the turn are stepping.
        """
        number = next(number for number, other in self.open.items() if other is end)
        self.holder.yield_turn(number, is_closing)
        self.holder, end.has_turn = end, True

    def close(self, end: "RootEnd") -> None:
        """Forget an end that had the turn and is closed.  On the root."""
        self.remove(end)
        if self.holder is None:
            self.kept.close()
        else:
            self.holder.has_turn = True


class RootEnd:
    """The root's end of a connection: it is open or closed, and has the turn or has not.

    Parameters
    ----------
    turns
        The connections over the same ranks; None in one process.

    Attributes
    ----------
    has_turn
        The ranks await the orders of this connection, not those of another one.
    envs
        Those of several ranks, which stay until they are closed, also if the program has dropped them.
    interrupts
        Signals of the program wait for the end of each exchange.
    """

    def __init__(self, steps: Steps, state: CallState, interrupts: Interrupts, turns: Turns | None):
        self._steps, self._state, self.interrupts, self._turns = steps, state, interrupts, turns
        self.has_turn, self.is_closed = turns is None or not turns.open, False
        self.envs: object = None

    def check_open(self) -> None:
        """See that it is open and has the turn."""
        if self.is_closed or self.interrupts.is_broken:
            self._state.check_open(self.is_closed)
        if not self.has_turn and self._turns is not None:
            self._turns.give(self)

    def prepare_reset(self) -> None:
        """See that envs can be reset; after a failure or an interrupt, drop what is under way."""
        self.check_open()
        if self._state.needs_new_beginning():
            with self.interrupts:
                self._drop()
                self._steps.driver.begin_anew()
                self.interrupts.forget()
        self._state.check_idle("reset")

    def _drop(self) -> None:
        self._state.drop()
        self._steps.drop()

    def ask(self, method: str, *args: object) -> None:
        """Call a method of every rank's worker, for what concerns more than the envs."""
        self.check_open()
        self._state.check_idle(method)
        with self.interrupts:
            self._steps.driver.call_ranks(method, *args)

    def yield_turn(self, number: int, is_closing: bool) -> None:
        """Let the ranks await the orders of the connection with this number; `is_closing`: to close it.

        Raises
        ------
        AlreadyPendingCallError
            The envs are stepping, and the program was not interrupted meanwhile.
        """
        is_pending = self._state.is_pending()
        if is_pending and not is_closing and not self.interrupts.has_interrupted:
            raise AlreadyPendingCallError(
                "envs of another connection have been sent actions and not been received; call recv() there until all "
                "have come",
                "connect",
            )
        with self.interrupts:
            if is_pending:
                self._drop()
            self._steps.driver.switch(number)
            self.has_turn = False

    def finish_recording(self) -> None:
        """Complete the file of `record`, if there is one; StorageError if it cannot be written."""
        if self._steps.recorder is not None:
            with self.interrupts:
                self._steps.recorder.finish()

    def close(self, code: int) -> None:
        """Let the other ranks out of `connect`, once, with the job's exit code."""
        if self.is_closed:
            return
        if self._turns is not None and not self.has_turn:
            self._turns.give(self, is_closing=True)
        try:
            self.finish_recording()
        finally:
            self._let_out(code)

    def _let_out(self, code: int) -> None:
        try:
            with self.interrupts:
                self.is_closed = True  # Also if a handler of the program raises at the end of this: all is done then.
                self._steps.driver.stop(code)
                self._steps.driver.exchanges.free()
                if self._turns is not None:
                    self._turns.close(self)
        finally:
            self.envs = None
            self.interrupts.close()
