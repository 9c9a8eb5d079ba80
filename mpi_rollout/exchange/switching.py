"""The transport of a usual run: collectives, and direct messages while other programs share the ranks' cores."""

import numpy as np

from mpi_rollout.core.layout import SHORT
from mpi_rollout.exchange.direct import DirectTransport
from mpi_rollout.exchange.transports import Buffers, CollectiveTransport, Transport
from mpi_rollout.exchange.waiting import Adaptation, Wait

IS_DIRECT = slice(16, 24)  # An int64 of each order: 1 if messages are direct from this order on, else 0.


class SwitchingTransport(Transport):
    """Switches between a `CollectiveTransport` and a `DirectTransport`.

    Blocking collectives cost least, but a rank that waits in one spins.  With nonblocking collectives and direct
    messages it can sleep.  Both add the same 4 us to an exchange of two ranks (9 us, Open MPI), some percent of a step
    of 64 CartPoles.  So ranks use these only while they must.

    Each order says how its slots and the next orders travel, so all ranks change at the same place, without a message.
    A rank that gets too little processor time says so in its slot's mark.  The root decides for all ranks, because in
    lockstep one such rank delays all of them.  The `DirectTransport` is made when it is needed for the first time.
    """

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        super().__init__(buffers, wait)
        self._collective = CollectiveTransport(buffers, wait)
        self._order_is_direct = buffers.order[IS_DIRECT].view(np.int64).data
        self._direct: DirectTransport | None = None
        self._adaptation, self._is_other_short = Adaptation(), False
        self._mark: np.ndarray | None = None  # The marks in the rows of this rank's slot.
        self._use(self._collective)

    def see_marks(self, own: np.ndarray | None, of_all: np.ndarray | None) -> None:
        self._mark = own

    def _use(self, transport: CollectiveTransport | DirectTransport) -> None:
        self._now, self._is_direct = transport, transport is self._direct
        names = ("await_slots", "spread", "listen", "finish", "send_actions", "await_actions")
        for name in names:  # Steps call these without a detour.
            setattr(self, name, getattr(transport, name))

    def post_order(self) -> None:
        if self._adaptation.sleeps(self._is_other_short) == self._is_direct:
            self._now.post_order()
            return
        self._order_is_direct[0] = not self._is_direct
        self._now.send_order()  # Its slots do not come back this way.
        self._change()
        self.listen()

    def await_order(self) -> None:
        self._now.await_order()
        if self._order_is_direct[0] != self._is_direct:
            self._change()  # It listens when this order is obeyed: the next order would take its place.

    def _change(self) -> None:
        self.finish()
        self._is_other_short = False
        if self._is_direct:
            self._use(self._collective)
            self._adaptation.watch.restart()
        else:
            if self._direct is None:
                self._direct = DirectTransport(self._collective.buffers, self._wait)
            self._use(self._direct)

    def note_shortage(self) -> None:
        self._is_other_short = True

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        self._collective.use_slots(slot, slots)
        if self._direct is not None:
            self._direct.use_slots(slot, slots)

    def post_slot(self, num_rows: int) -> None:
        is_short = not self._is_direct and self._adaptation.watch.is_short()
        if is_short and self._mark is not None and self._mark[0] == 0:
            self._mark[0] = SHORT
        self._now.post_slot(num_rows)

    def free(self) -> None:
        if self._direct is not None:
            self._direct.free()
