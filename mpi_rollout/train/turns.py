"""Several connections over the same ranks: the ranks await the orders of one of them at a time.

When the root goes on with another connection, it says so by the one whose orders the ranks await.  So a connection that
is alone costs nothing more, and one that has the turn is as quick as if it were alone.
"""

from contextlib import ExitStack
from typing import Any

from mpi_rollout.exchange.exchange import Command


class Turns:
    """The open connections of a group of ranks, as each of these ranks has them.

    Attributes
    ----------
    open
        By number the `MPIVectorEnv`s on the root, the `Worker`s elsewhere, in the order in which they were opened.
    holder
        The one whose orders the ranks await.
    entering
        What is being opened on the root, while others are open.
    kept
        Contexts of the root that it leaves when all are closed.
    """

    def __init__(self, comm: Any):
        self.comm, self.entering = comm, None
        self.kept = ExitStack()
        self.open: dict[int, Any] = {}
        self.holder: Any = None
        self._num_opened = 0

    def add(self, one: Any) -> None:
        """Add a connection; the first has the turn.  On all ranks."""
        self._num_opened += 1
        self.open[self._num_opened] = one
        self.holder = self.holder or one

    def remove(self, one: Any) -> None:
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

    def give(self, envs: Any, is_closing: bool = False) -> None:
        """Have the ranks await the orders of these envs, not those of the holder.  On the root.

        Raises
        ------
        AlreadyPendingCallError
            The envs of the connection that has the turn are stepping.
        """
        number = next(number for number, other in self.open.items() if other is envs)
        self.holder.yield_turn(number, is_closing)
        self.holder, envs.has_turn = envs, True

    def close(self, envs: Any) -> None:
        """Forget envs that had the turn and are closed.  On the root."""
        self.remove(envs)
        if self.holder is None:
            self.kept.close()
        else:
            self.holder.has_turn = True
