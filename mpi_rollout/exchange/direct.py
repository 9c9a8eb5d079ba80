"""Messages between the root and each of some ranks, and the transport of a usual run, which switches to them.

In direct messages no rank passes on what another one waits for.  So with one rank nobody else is delayed, a rank can
take part in several exchanges and obey the first order, and ranks may sleep while they wait.
"""

from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.exchange.transports import BYTES_TAG, ORDER_TAG, SLOT_TAG, Buffers, CollectiveTransport, Transport
from mpi_rollout.exchange.waiting import Adaptation, Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

IS_DIRECT = slice(16, 24)  # An int64 of each order: 1 if messages are direct from this order on, else 0.


class DirectTransport(Transport):
    """Persistent sends and receives between the root and each of some other ranks.

    The root exchanges messages with all ranks but itself.
    """

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        super().__init__(buffers, wait)
        comm, order, slot, slots, ranks = buffers
        self.comm = comm
        self._parts_sent: list[MPI.Request] = []
        self._is_root, self._is_listening = comm.rank == ROOT, False
        self._peers = [rank for rank in ranks if rank != ROOT] if self._is_root else [ROOT]
        make = comm.Send_init if self._is_root else comm.Recv_init
        self._order_requests = [make(order.data, peer, ORDER_TAG) for peer in self._peers]
        self._slot_requests: list[MPI.Prequest] = []
        self.use_slots(slot, slots)
        self._start_all, self._wait_all = self._receives[0].Startall, self._receives[0].Waitall

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        """Make requests for whole slots; the root's requests receive parts of slots too."""
        if self._slot_requests:
            self.finish()
        if self._is_root:
            self._stop_listening()
        for request in self._slot_requests:
            request.Free()
        if slots is not None:
            self._slots = [slots[peer - self.buffers.ranks.start] for peer in self._peers]
        elif slot is not None:
            self._slots = [slot]
        make = self.comm.Recv_init if self._is_root else self.comm.Send_init
        pairs = zip(self._slots, self._peers, strict=True)
        self._slot_requests = [make(slot.data, peer, SLOT_TAG) for slot, peer in pairs]
        both = self._order_requests, self._slot_requests
        self._sends, self._receives = both if self._is_root else both[::-1]
        self.arrival = self._receives[0]

    def post_order(self) -> None:
        self.listen()
        self.send_order()

    def send_order(self) -> None:
        """Send the order, and do not listen: what answers it comes by another transport."""
        self.finish()
        self._start_all(self._order_requests)

    def send_bytes(self, data: np.ndarray) -> None:
        self._parts_sent += [self.comm.Isend(data.data, peer, BYTES_TAG) for peer in self._peers]

    def await_bytes(self, data: np.ndarray) -> None:
        self._wait.all([self.comm.Irecv(data.data, ROOT, BYTES_TAG)])

    def post_slot(self, num_rows: int) -> None:
        self.listen()
        self.finish()
        if num_rows == len(self._slots[0]):
            self._start_all(self._slot_requests)
        else:
            self._parts_sent.append(self.comm.Isend(self._slots[0][:num_rows].data, ROOT, SLOT_TAG))

    def await_slots(self, num_rows: int) -> None:
        self._wait.all(self._receives)
        self._is_listening = False

    def note_arrival(self) -> None:
        self._is_listening = False

    def await_order(self) -> None:
        self.listen()
        self.await_slots(0)

    def listen(self) -> None:
        if not self._is_listening:
            self._start_all(self._receives)
            self._is_listening = True

    def finish(self) -> None:
        self._wait_all(self._sends)
        while self._parts_sent:
            self._parts_sent.pop().Wait()

    def _stop_listening(self) -> None:
        """Take back the receives that no message answers."""
        if self._is_listening:
            for request in self._receives:
                request.Cancel()
            self._wait_all(self._receives)
            self._is_listening = False

    def free(self) -> None:
        self.finish()
        self._stop_listening()
        for request in (*self._receives, *self._sends):
            request.Free()


class SwitchingTransport(Transport):
    """Collectives, and direct messages while other programs share the ranks' cores.

    Blocking collectives cost least, but a rank that waits in one spins.  With direct messages it can sleep, which adds
    4 us to an exchange of two ranks (9 us, Open MPI), some percent of a step of 64 CartPoles.  So ranks send directly
    only while they must.

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
        self._use(self._collective)

    def _use(self, transport: CollectiveTransport | DirectTransport) -> None:
        self._now, self._is_direct = transport, transport is self._direct
        for name in ("post_slot", "await_slots", "finish", "send_bytes", "await_bytes"):
            setattr(self, name, getattr(transport, name))  # Steps call these without a detour.

    def post_order(self) -> None:
        if self._adaptation.sleeps(self._is_other_short) == self._is_direct:
            self._now.post_order()
            return
        self._order_is_direct[0] = not self._is_direct
        self._now.send_order()  # Its slots do not come back this way.
        self._change()
        self._now.listen()

    def await_order(self) -> None:
        self._now.await_order()
        if self._order_is_direct[0] != self._is_direct:
            self._change()

    def _change(self) -> None:
        self.finish()
        self._is_other_short = False
        if self._is_direct:
            self._use(self._collective)
            self._adaptation.restart()
        else:
            if self._direct is None:
                self._direct = DirectTransport(self._collective.buffers, self._wait)
            self._use(self._direct)

    def is_short(self) -> bool:
        return not self._is_direct and self._adaptation.is_short()

    def note_shortage(self) -> None:
        self._is_other_short = True

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        self._collective.use_slots(slot, slots)
        if self._direct is not None:
            self._direct.use_slots(slot, slots)

    def free(self) -> None:
        if self._direct is not None:
            self._direct.free()
