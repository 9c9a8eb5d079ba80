"""How an order goes out and its slots come back.

Each rank makes a transport for its buffers.  The root calls `post_order` and `await_slots`, the other ranks call
`await_order` and `post_slot`.  An order and a slot are single buffers of bytes, so each is one message.

Transport             no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step
NonblockingTransport  nonblocking collectives: a rank can take part in several of these, and obey the first order
DirectTransport       messages between the root and each of some ranks.  No rank passes on what another one waits for:
                      with one rank nobody else is delayed, and ranks may sleep while they wait
SwitchingTransport    collective, and direct while other programs share the cores
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpi_rollout.core.layout import MASKED, SHORT
from mpi_rollout.exchange.waiting import Adaptation, Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

Message: TypeAlias = Any  # A Python object that is sent pickled.
ORDER_TAG, SLOT_TAG, OBJECT_TAG, INFOS_TAG = 1, 2, 3, 4


class Transport:
    """No messages: the root is the only rank.  The other transports have the same methods.

    Attributes
    ----------
    arrival
        The request for the next message, if it is a single one: for the slot on the root, for the order elsewhere.
    """

    arrival: "MPI.Request | None" = None

    def post_order(self) -> None:
        """Send the order to the ranks."""

    def await_order(self) -> None:
        """Receive the order."""

    def post_slot(self) -> None:
        """Send this rank's slot."""

    def await_slots(self) -> None:
        """Receive all slots."""

    def spread(self, value: Message = None) -> Message:
        """Send a Python object from the root to the other ranks, pickled, between an order and its slots."""
        return value

    def listen(self) -> None:
        """Be ready to receive before the other side is told to send: some orders are not answered by slots."""

    def finish(self) -> None:
        """Wait until the messages of this rank have left."""

    def free(self) -> None:
        """Give the requests back."""


class CollectiveTransport(Transport):
    """Bcast and Gather.

    Parameters
    ----------
    slot
        This rank's own; on the root a row of `slots`, or None.
    slots
        Of shape (num_ranks, nbytes) on the root, else None.
    """

    def __init__(
        self, comm: "MPI.Intracomm", order: np.ndarray, slot: np.ndarray | None, slots: np.ndarray | None
    ) -> None:
        from mpi4py import MPI

        self.comm = comm
        self._order = (order.data, MPI.BYTE)
        # The root's own slot is in its place already.
        self._slot = MPI.IN_PLACE if slot is None or slots is not None else (slot.data, MPI.BYTE)
        self._slots = None if slots is None else (slots.data, slots.shape[1], MPI.BYTE)

    def post_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

    send_order = await_order = post_order

    def post_slot(self) -> None:
        self.comm.Gather(self._slot, None, ROOT)

    def await_slots(self) -> None:
        self.comm.Gather(self._slot, self._slots, ROOT)

    def spread(self, value: Message = None) -> Message:
        return self.comm.bcast(value, ROOT)


class NonblockingTransport(CollectiveTransport):
    """Ibcast and Igather.  A worker listens for the next order as soon as its slot is on its way."""

    def __init__(
        self,
        comm: "MPI.Intracomm",
        order: np.ndarray,
        slot: np.ndarray | None,
        slots: np.ndarray | None,
        wait: Wait,
    ) -> None:
        super().__init__(comm, order, slot, slots)
        self._wait = wait
        self._sent: MPI.Request | None = None
        if slots is None:
            self.listen()

    def post_order(self) -> None:
        self.finish()
        self._sent = self.comm.Ibcast(self._order, ROOT)

    def await_order(self) -> None:
        if self.arrival is not None:
            self._wait.one(self.arrival)
        self.finish()  # It is over, because the root has sent another order.

    def post_slot(self) -> None:
        self._sent = self.comm.Igather(self._slot, None, ROOT)
        self.listen()

    def listen(self) -> None:
        self.arrival = self.comm.Ibcast(self._order, ROOT)

    def await_slots(self) -> None:
        self._wait.one(self.comm.Igather(self._slot, self._slots, ROOT))

    def finish(self) -> None:
        if self._sent is not None:
            self._sent.Wait()
            self._sent = None


class DirectTransport(Transport):
    """Persistent sends and receives between the root and each of some other ranks.

    Parameters
    ----------
    slots
        On the root a row for each of `peers`; elsewhere this rank's own slot.
    peers
        On the root the ranks that take part; elsewhere the root.
    """

    def __init__(
        self, comm: "MPI.Intracomm", order: np.ndarray, slots: list[np.ndarray], peers: Sequence[int], wait: Wait
    ) -> None:
        self.comm, self._peers, self._wait = comm, peers, wait
        rows = list(zip(slots, peers, strict=True))
        if comm.rank == ROOT:
            self._sends = [comm.Send_init(order.data, peer, ORDER_TAG) for peer in peers]
            self._receives = [comm.Recv_init(row.data, peer, SLOT_TAG) for row, peer in rows]
        else:
            self._sends = [comm.Send_init(row.data, peer, SLOT_TAG) for row, peer in rows]
            self._receives = [comm.Recv_init(order.data, peer, ORDER_TAG) for peer in peers]
        self._start_all, self._wait_all = self._receives[0].Startall, self._receives[0].Waitall
        self.arrival = self._receives[0]
        self._is_listening = False

    def post_order(self) -> None:
        self.listen()
        self.send_order()

    post_slot = post_order

    def send_order(self) -> None:
        """Send the order, or elsewhere the slot, and do not listen: what answers it comes by another transport."""
        self.finish()
        self._start_all(self._sends)

    def await_slots(self) -> None:
        self._wait.all(self._receives)
        self._is_listening = False

    await_order = await_slots

    def listen(self) -> None:
        if not self._is_listening:
            self._start_all(self._receives)
            self._is_listening = True

    def spread(self, value: Message = None) -> Message:
        if self.comm.rank != ROOT:
            return self.comm.recv(source=ROOT, tag=OBJECT_TAG)
        for peer in self._peers:
            self.comm.send(value, peer, OBJECT_TAG)
        return value

    def finish(self) -> None:
        self._wait_all(self._sends)

    def free(self) -> None:
        self.finish()
        for request in self._receives:
            if self._is_listening:
                request.Cancel()
                request.Wait()
            request.Free()
        for request in self._sends:
            request.Free()


class SwitchingTransport(Transport):
    """Lockstep by collectives, and by direct messages while other programs share the ranks' cores.

    Blocking collectives cost least, but a rank that waits in one spins.  With nonblocking collectives and direct
    messages it can sleep.  Both add the same 4 us to an exchange of two ranks (9 us, Open MPI), some percent of a step
    of 64 CartPoles.  So ranks use these only while they must.

    Each order says how its slots and the next orders travel, so all ranks change at the same place, without a message.
    A rank that gets too little processor time says so in its slot's mark.  The root decides for all ranks, because in
    lockstep one such rank delays all of them.

    Parameters
    ----------
    make_direct
        Makes the `DirectTransport` when it is needed for the first time.
    is_direct
        One number in the order: 1 if messages are direct from this order on, 0 if they are collective.

    Attributes
    ----------
    mark
        That of this rank's slot; None on a root without envs.
    """

    def __init__(
        self,
        collective: CollectiveTransport,
        make_direct: Callable[[], DirectTransport],
        is_direct: np.ndarray,
        mark: np.ndarray | None,
    ) -> None:
        self._collective, self._make_direct, self._order_is_direct = collective, make_direct, is_direct.data
        self._direct: DirectTransport | None = None
        self._adaptation, self._is_other_short, self.mark = Adaptation(), False, mark
        self._use(collective)

    def _use(self, transport: CollectiveTransport | DirectTransport) -> None:
        self._now, self._is_direct = transport, transport is self._direct
        for name in ("await_slots", "spread", "listen", "finish"):  # Steps call these without a detour.
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
            self._direct = self._direct or self._make_direct()
            self._use(self._direct)

    def note_shortage(self) -> None:
        """Note on the root that a slot has come with the mark `SHORT`."""
        self._is_other_short = True

    def post_slot(self) -> None:
        is_short = not self._is_direct and self._adaptation.watch.is_short()
        if is_short and self.mark is not None and self.mark[0] in (0, MASKED):
            self.mark[0] = SHORT
        self._now.post_slot()

    def free(self) -> None:
        if self._direct is not None:
            self._direct.free()
