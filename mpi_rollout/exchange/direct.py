"""Messages between the root and each of some ranks, and the transport of a usual run, which switches to them.

In direct messages no rank passes on what another one waits for.  So with one rank nobody else is delayed, a rank can
take part in several exchanges and obey the first order, and ranks may sleep while they wait.
"""

from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.exchange.transports import (
    BYTES_TAG,
    ORDER_TAG,
    SLOT_TAG,
    Buffers,
    CollectiveTransport,
    Slots,
    Transport,
)
from mpi_rollout.exchange.waiting import Adaptation, Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


class DirectTransport(Transport):
    """Persistent sends and receives between the root and each of some other ranks.

    The root exchanges messages with all ranks but itself.

    A rank that takes part in several exchanges waits for the first of their `arrival` requests, each of which is ready
    after `listen`; and calls `note_arrival` where a look at the request has shown that the message has come.

    Attributes
    ----------
    arrival
        The request for the next message, if it is a single one: for the slot on the root, for the order elsewhere.
    """

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        comm, order, _, slots, ranks = buffers
        self.comm, self._wait, self._first_rank = comm, wait, ranks.start
        self._parts_sent: list[MPI.Request] = []
        self._is_root, self._is_listening = comm.rank == ROOT, False
        self._peers = [rank for rank in ranks if rank != ROOT] if self._is_root else [ROOT]
        make = comm.Send_init if self._is_root else comm.Recv_init
        self._order_requests = [make(order.data, peer, ORDER_TAG) for peer in self._peers]
        self._slot_requests: list[MPI.Prequest] = []
        self.use_slots(slots)
        self._start_all, self._wait_all = self._receives[0].Startall, self._receives[0].Waitall

    def use_slots(self, slots: Slots) -> None:
        """Make requests for whole slots; the root's requests receive parts of slots too."""
        if self._slot_requests:
            self.finish()
        if self._is_root:
            self._stop_listening()
        for request in self._slot_requests:
            request.Free()
        if slots.all is not None:
            self._slots = [slots.all[peer - self._first_rank] for peer in self._peers]
        elif slots.own is not None:
            self._slots = [slots.own]
        make = self.comm.Recv_init if self._is_root else self.comm.Send_init
        pairs = zip(self._slots, self._peers, strict=True)
        self._slot_requests = [make(slot.data, peer, SLOT_TAG) for slot, peer in pairs]
        both = self._order_requests, self._slot_requests
        self._sends, self._receives = both if self._is_root else both[::-1]
        self.arrival: MPI.Request = self._receives[0]

    def send_order(self) -> None:
        self.listen()
        self.send_last_order()

    def send_last_order(self) -> None:
        """Send an order and do not listen: what answers it comes by another transport."""
        self.finish()
        self._start_all(self._order_requests)

    def receive_order(self) -> None:
        self.listen()
        self._receive()

    def send_bytes(self, data: np.ndarray) -> None:
        self._parts_sent += [self.comm.Isend(data.data, peer, BYTES_TAG) for peer in self._peers]

    def receive_bytes(self, data: np.ndarray) -> None:
        self._wait.all([self.comm.Irecv(data.data, ROOT, BYTES_TAG)])

    def send_slot(self, num_rows: int) -> None:
        self.listen()
        self.finish()
        if num_rows == len(self._slots[0]):
            self._start_all(self._slot_requests)
        else:
            self._parts_sent.append(self.comm.Isend(self._slots[0][:num_rows].data, ROOT, SLOT_TAG))

    def receive_slots(self, num_rows: int) -> None:
        self._receive()

    def _receive(self) -> None:
        self._wait.all(self._receives)
        self._is_listening = False

    def listen(self) -> None:
        """Be ready to receive the next message."""
        if not self._is_listening:
            self._start_all(self._receives)
            self._is_listening = True

    def note_arrival(self) -> None:
        """Note that the message of `arrival` has come, as a look at that request has shown."""
        self._is_listening = False

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

    The word of each order says how its slots and the next orders travel, so all ranks change at the same place, without
    a message: 1 if directly, else 0.  The word of a slot says whether its rank gets too little processor time.  The
    root decides for all ranks, because in lockstep one such rank delays all of them.  The `DirectTransport` is made
    when it is needed for the first time.
    """

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        self._buffers, self._wait, self._word = buffers, wait, buffers.order_word
        self._collective = CollectiveTransport(buffers)
        self._direct: DirectTransport | None = None
        self._now: CollectiveTransport | DirectTransport = self._collective
        self._adaptation, self._is_direct = Adaptation(), False
        self._words = buffers.slots.words

    def use_slots(self, slots: Slots) -> None:
        self._buffers, self._words = self._buffers._replace(slots=slots), slots.words
        self._collective.use_slots(slots)
        if self._direct is not None:
            self._direct.use_slots(slots)

    def send_order(self) -> None:
        if self._adaptation.sleeps(self._is_other_short) == self._is_direct:
            self._now.send_order()
            return
        self._word[0] = not self._is_direct
        if self._now is self._direct:
            self._direct.send_last_order()
        else:
            self._collective.send_order()
        self._change()
        if self._now is self._direct:
            self._direct.listen()

    def receive_order(self) -> None:
        self._now.receive_order()
        if self._word[0] != self._is_direct:
            self._change()

    def send_bytes(self, data: np.ndarray) -> None:
        self._now.send_bytes(data)

    def receive_bytes(self, data: np.ndarray) -> None:
        self._now.receive_bytes(data)

    def send_slot(self, num_rows: int) -> None:
        self._words[0] = not self._is_direct and self._adaptation.is_short()
        self._now.send_slot(num_rows)

    def receive_slots(self, num_rows: int) -> None:
        self._now.receive_slots(num_rows)

    def finish(self) -> None:
        self._now.finish()

    def _is_other_short(self) -> bool:
        """Tell on the root whether a rank said with its last slot that it gets too little processor time."""
        return bool(np.count_nonzero(self._words))

    def _change(self) -> None:
        """Use the other one of both transports."""
        self.finish()
        if self._is_direct:
            self._now = self._collective
            self._adaptation.restart()
        else:
            if self._direct is None:
                self._direct = DirectTransport(self._buffers, self._wait)
            self._now = self._direct
        self._is_direct = not self._is_direct

    def free(self) -> None:
        if self._direct is not None:
            self._direct.free()
