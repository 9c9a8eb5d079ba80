"""Whose turn it is, where several connections share their ranks."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Generic, TypeVar

from mpi_rollout.exchange.orders import Command
from mpi_rollout.ranks.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

End = TypeVar("End")


class Turns(Generic[End]):
    """The open connections of a group of ranks: the `RootEnd`s on the root, the `Worker`s elsewhere.

    The ranks await the orders of one connection at a time.  When the root goes on with another connection, it says so
    by the one whose orders the ranks await.  So a single connection costs nothing more, and of several the one that has
    the turn is as quick.

    Attributes
    ----------
    open
        By number, in the order in which they were opened.
    holder
        The one whose orders the ranks await.
    kept
        Contexts that are left when all connections are closed.
    """

    holder: End

    def __init__(self, comm: "MPI.Intracomm"):
        self.comm, self.kept = comm, ExitStack()
        self.open: dict[int, End] = {}
        self._num_opened = 0

    def add(self, end: End) -> None:
        """Add a connection; the first has the turn.  On all ranks."""
        self._num_opened += 1
        if not self.open:
            self.holder = end
        self.open[self._num_opened] = end

    def remove(self, end: End) -> None:
        """Forget a connection that had the turn and is closed; the last of the others has it then.  On all ranks."""
        self.open = {number: other for number, other in self.open.items() if other is not end}
        if self.open:
            self.holder = next(reversed(self.open.values()))
        else:
            self.kept.close()


def serve(turns: Turns[Worker]) -> int:
    """Obey the root's orders until all connections are closed; return the exit code of the last."""
    while True:
        command, code = turns.holder.serve()
        if command == Command.SWITCH:
            turns.holder = turns.open[code]
            continue
        turns.holder.exchanges.free()
        turns.remove(turns.holder)
        if not turns.open:
            return code
