"""How orders and slots travel where a rank must not be held up in a collective.

DirectTransport       messages between the root and each of some ranks
NonblockingTransport  nonblocking collectives: a rank can take part in several of these, and obey the first order

In direct messages no rank passes on what another one waits for.  So with one rank nobody else is delayed, and ranks may
sleep while they wait.
"""

from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.exchange.transports import (
    ACTIONS_TAG,
    OBJECT_TAG,
    ORDER_TAG,
    SLOT_TAG,
    Buffers,
    CollectiveTransport,
    Message,
    Transport,
)
from mpi_rollout.exchange.waiting import Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


class DirectTransport(Transport):
    """Persistent sends and receives between the root and each of some other ranks.

    The root exchanges messages with all ranks but itself.
    """

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        super().__init__(buffers, wait)
        comm, order, slot, slots, ranks = buffers
        self.comm, self._ranks = comm, ranks
        self._parts_sent: list[MPI.Request] = []
        self._is_root, self._is_listening = comm.rank == ROOT, False
        self._peers = peers = [rank for rank in ranks if rank != ROOT] if self._is_root else [ROOT]
        if self._is_root:
            self._order_requests = [comm.Send_init(order.data, peer, ORDER_TAG) for peer in peers]
        else:
            self._order_requests = [comm.Recv_init(order.data, peer, ORDER_TAG) for peer in peers]
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
            self._slots = [slots[peer - self._ranks.start] for peer in self._peers]
        elif slot is not None:
            self._slots = [slot]
        pairs = zip(self._slots, self._peers, strict=True)
        if self._is_root:
            self._slot_requests = [self.comm.Recv_init(slot.data, peer, SLOT_TAG) for slot, peer in pairs]
            self._sends, self._receives = self._order_requests, self._slot_requests
        else:
            self._slot_requests = [self.comm.Send_init(slot.data, peer, SLOT_TAG) for slot, peer in pairs]
            self._sends, self._receives = self._slot_requests, self._order_requests
        self.arrival = self._receives[0]

    def post_order(self) -> None:
        self.listen()
        self.send_order()

    def send_order(self) -> None:
        """Send the order, and do not listen: what answers it comes by another transport."""
        self.finish()
        self._start_all(self._order_requests)

    def send_actions(self, actions: np.ndarray) -> None:
        self._parts_sent += [self.comm.Isend(actions.data, peer, ACTIONS_TAG) for peer in self._peers]

    def await_actions(self, actions: np.ndarray) -> None:
        self._wait.one(self.comm.Irecv(actions.data, ROOT, ACTIONS_TAG))

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

    def await_order(self) -> None:
        self._wait.all(self._receives)
        self._is_listening = False

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


class NonblockingTransport(CollectiveTransport):
    """Ibcast and Igather.  A worker listens for the next order as soon as its slot is on its way."""

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        super().__init__(buffers, wait)
        self._sent: list[MPI.Request] = []

    def post_order(self) -> None:
        self.finish()
        self._sent.append(self.comm.Ibcast(self._order, ROOT))

    def send_actions(self, actions: np.ndarray) -> None:
        self._sent.append(self.comm.Ibcast((actions.data, self._byte), ROOT))

    def await_actions(self, actions: np.ndarray) -> None:
        self._wait.one(self.comm.Ibcast((actions.data, self._byte), ROOT))

    def await_order(self) -> None:
        if self.arrival is not None:
            self._wait.one(self.arrival)
        self.finish()  # It is over, because the root has sent another order.

    def post_slot(self, num_rows: int) -> None:
        self._sent.append(self._begin_gather(num_rows))
        self.listen()

    def listen(self) -> None:
        self.arrival = self.comm.Ibcast(self._order, ROOT)

    def await_slots(self, num_rows: int) -> None:
        self._wait.one(self._begin_gather(num_rows))

    def _begin_gather(self, num_rows: int) -> "MPI.Request":
        if num_rows == self._room:
            return self.comm.Igather(self._own, self._all, ROOT)
        return self.comm.Igatherv(*self._part(num_rows), ROOT)

    def finish(self) -> None:
        while self._sent:
            self._sent.pop().Wait()
