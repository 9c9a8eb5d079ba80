"""Lockstep that goes over to messages between which ranks sleep, while other programs share their cores, and back.

Blocking collectives cost least, but who waits in one spins.  Nonblocking ones and direct messages can be waited for
asleep: the same 4 us more for an exchange of two ranks (9 us, Open MPI), some percent of a step of 64 CartPoles.  So
ranks use these only while they must.

Each order says how its slots and the orders after it travel, so all ranks change at the same place and it takes no
message.  A rank that is short of processor time says so by its slot's mark; the root decides, for all ranks: in
lockstep one that is short delays all of them.
"""

from collections.abc import Callable

import numpy as np

from mpi_rollout.core.layout import MASKED, SHORT
from mpi_rollout.exchange.transports import DirectMessages, Lockstep
from mpi_rollout.exchange.waiting import Adaptation


class Changing:
    """`messages.Lockstep` or `messages.DirectMessages`, with the same verbs.

    Parameters
    ----------
    make_direct
        Makes the `DirectMessages`, when it is needed for the first time.
    sleeps
        One number in the order, which says how messages travel from this order on: 1 by `DirectMessages`, 0 by
        `Lockstep`.

    Attributes
    ----------
    mark
        That of this rank's slot, to be set by whoever has laid it out; None on a root without envs.
    """

    def __init__(self, lockstep: Lockstep, make_direct: Callable[[], DirectMessages], sleeps: np.ndarray):
        self._lockstep, self._make_direct, self._sleeps = lockstep, make_direct, memoryview(sleeps)
        self._direct: DirectMessages | None = None
        self._adaptation, self._is_told = Adaptation(), False
        self.mark: np.ndarray | None = None
        self._go_on_by(lockstep)

    def _go_on_by(self, messages: Lockstep | DirectMessages) -> None:
        self._now, self._is_direct = messages, messages is self._direct
        self.await_slots, self.spread = messages.await_slots, messages.spread
        self.listen, self.finish = messages.listen, messages.finish

    def post_order(self) -> None:
        if self._adaptation.sleeps(self._is_told) == self._is_direct:
            self._now.post_order()
            return
        self._sleeps[0] = not self._is_direct
        self._now.send_order()  # Its slots do not come back this way.
        self._change()
        self.listen()

    def await_order(self) -> None:
        self._now.await_order()
        if self._sleeps[0] != self._is_direct:
            self._change()  # It listens when this order is obeyed: the next one would take its place.

    def _change(self) -> None:
        self.finish()
        self._is_told = False
        if self._is_direct:
            self._go_on_by(self._lockstep)
            self._adaptation.watch.restart()
        else:
            self._direct = self._direct or self._make_direct()
            self._go_on_by(self._direct)

    def note_shortage(self) -> None:
        """On the root: a slot has come with the mark `SHORT`."""
        self._is_told = True

    def post_slot(self) -> None:
        if not self._is_direct and self._adaptation.watch.is_short() and self.mark[0] in (0, MASKED):
            self.mark[0] = SHORT
        self._now.post_slot()

    def free(self) -> None:
        if self._direct is not None:
            self._direct.free()
