"""How an order goes out and its slots come back: the seam `Transport`, and those that carry the messages of MPI.

An order and a slot are single buffers of bytes, so each is one message.  Some orders have one message more: the actions
of a fragment, or other bytes, after the order that says how many they are.

NoTransport           no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step
DirectTransport       messages between the root and each of some ranks
SwitchingTransport    that of a usual run, which switches between both ways

In direct messages no rank passes on what another one waits for.  So with one rank nobody else is delayed, a rank can
take part in several exchanges and obey the first order, and ranks may sleep while they wait.

`surviving` has a transport that goes on without lost ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_rollout.exchange.waiting import Adaptation, Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

ORDER_TAG, SLOT_TAG, INFOS_TAG, BYTES_TAG = 1, 2, 3, 4


class Slots(NamedTuple):
    """The slots of an exchange, as one rank has them.

    Attributes
    ----------
    own
        This rank's own, of shape (num_rows, nbytes); on the root one of `all`, or None where it has none.
    all
        Of shape (num_ranks, num_rows, nbytes) on the root, else None.
    words
        An int64 of each slot of `all`, elsewhere of the own one: what one transport tells the other with a slot.
    marks
        On the root the marks of all slots' first rows; else None.
    """

    own: np.ndarray | None
    all: np.ndarray | None
    words: np.ndarray
    marks: np.ndarray | None


class Buffers(NamedTuple):
    """What a transport carries, as one rank has it, in bytes.

    `ranks` are those of the slots, as ranks of `comm`.  `order_word` is an int64 of the order: what the root's
    transport tells the others with it.
    """

    comm: "MPI.Intracomm"
    order: np.ndarray
    order_word: memoryview
    slots: Slots
    ranks: range


class Transport(ABC):
    """Carries the root's orders to the ranks of an exchange, and their slots back.

    Each rank makes one for its own buffers, all at the same place of the program.  From then on the root and the other
    ranks call the verbs below in pairs and in the same order; no verb does the work of another.

    ==================  ====================  ==========================================================
    the root            each other rank
    ==================  ====================  ==========================================================
    `send_order`        `receive_order`       once for each order; it says how many bytes and rows follow
    `send_bytes`        `receive_bytes`       right after an order with more to say, equally many bytes
    `receive_slots`     `send_slot`           once after each order that is answered, equally many rows
    ==================  ====================  ==========================================================

    A rank writes its slot before `send_slot`, and does not write to it before its next `receive_order` returns.  The
    root may read the slots from the return of `receive_slots` until its next `send_order`.  The order, and what was
    given to `send_bytes`, must stay as they are until the slots have come, or until `finish`.  A verb that needs the
    other side waits for it as long as it takes: who ends a job that hangs is none of its business.

    A slot's word is the transport's, and so is the mark of a lost rank; all else in a slot is not for it to write.  The
    root may take the slots of a `DirectTransport` by its `arrival`, in the place of `receive_slots`.

    A transport whose ranks are never lost raises nothing but what MPI raises.  `RankLost` says that a rank was lost
    in a round with more than an order and slots: the round is void on all ranks that are left.
    """

    @abstractmethod
    def send_order(self) -> None:
        """Send the order to all other ranks."""

    @abstractmethod
    def receive_order(self) -> None:
        """Wait for the root's next order."""

    @abstractmethod
    def send_bytes(self, data: np.ndarray) -> None:
        """Send what follows an order to all other ranks."""

    @abstractmethod
    def receive_bytes(self, data: np.ndarray) -> None:
        """Receive what follows an order into `data`."""

    @abstractmethod
    def send_slot(self, num_rows: int) -> None:
        """Send the first rows of this rank's slot."""

    @abstractmethod
    def receive_slots(self, num_rows: int) -> None:
        """Receive the first rows of all slots; the root's own is there already."""

    @abstractmethod
    def use_slots(self, slots: Slots) -> None:
        """Carry other slots from now on.  All ranks call it between the same two orders."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until what this rank has sent may be written to again."""

    @abstractmethod
    def free(self) -> None:
        """Give back what MPI holds for it.  All ranks call it, after the last order."""


class NoTransport(Transport):
    """No messages: the root is the only rank of the exchange, and its slot is where it reads it."""

    def __init__(self, _buffers: Buffers) -> None:
        pass

    def send_order(self) -> None:
        """Do nothing: the root obeys the order that it has written."""

    def receive_order(self) -> None:
        raise NotImplementedError("no other rank takes part in this exchange")

    def send_bytes(self, data: np.ndarray) -> None:
        """Do nothing: the root has them."""

    def receive_bytes(self, data: np.ndarray) -> None:
        raise NotImplementedError("no other rank takes part in this exchange")

    def send_slot(self, num_rows: int) -> None:
        raise NotImplementedError("no other rank takes part in this exchange")

    def receive_slots(self, num_rows: int) -> None:
        """Do nothing: there is only the root's own slot."""

    def use_slots(self, slots: Slots) -> None:
        """Do nothing: they are not carried."""

    def finish(self) -> None:
        """Do nothing: nothing was sent."""

    def free(self) -> None:
        """Do nothing: MPI holds nothing."""


class CollectiveTransport(Transport):
    """Bcast and Gather."""

    def __init__(self, buffers: Buffers) -> None:
        from mpi4py import MPI

        self.comm: MPI.Intracomm = buffers.comm
        self._byte = MPI.BYTE
        self._order = (buffers.order.data, MPI.BYTE)
        self.use_slots(buffers.slots)

    def use_slots(self, slots: Slots) -> None:
        self._slots = slots
        self._gathers: dict[int, Callable[[], object]] = {}  # By the number of rows.

    def send_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

    def receive_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

    def send_bytes(self, data: np.ndarray) -> None:
        self.comm.Bcast((data.data, self._byte), ROOT)

    def receive_bytes(self, data: np.ndarray) -> None:
        self.comm.Bcast((data.data, self._byte), ROOT)

    def send_slot(self, num_rows: int) -> None:
        gather = self._gathers.get(num_rows)
        if gather is None:
            gather = self._gathers[num_rows] = self._gather_from_here(num_rows)
        gather()

    def receive_slots(self, num_rows: int) -> None:
        gather = self._gathers.get(num_rows)
        if gather is None:
            gather = self._gathers[num_rows] = self._gather_to_here(num_rows)
        gather()

    def _gather_from_here(self, num_rows: int) -> Callable[[], object]:
        """Make the call with which a worker takes part in gathering the first rows of all slots."""
        slot = self._slots.own
        assert slot is not None, "a worker has a slot"
        gather = self.comm.Gather if num_rows == len(slot) else self.comm.Gatherv
        return partial(gather, (slot[:num_rows].data, self._byte), None, ROOT)

    def _gather_to_here(self, num_rows: int) -> Callable[[], object]:
        """Make the root's call: whole slots lie one after the other, parts of them do not."""
        from mpi4py import MPI

        slots = self._slots.all
        assert slots is not None, "the root has all slots"
        num_ranks, room, nbytes = slots.shape
        own = MPI.IN_PLACE  # The root's own slot is in its place already.
        if num_rows == room:
            return partial(self.comm.Gather, own, (slots.data, room * nbytes, MPI.BYTE), ROOT)
        counts, places = [num_rows * nbytes] * num_ranks, [*range(0, num_ranks * room * nbytes, room * nbytes)]
        return partial(self.comm.Gatherv, own, (slots.data, counts, places, MPI.BYTE), ROOT)

    def finish(self) -> None:
        """Do nothing: a blocking call returns when its buffer is free."""

    def free(self) -> None:
        """Do nothing: the communicator is not its own."""


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
        adaptation = self._adaptation
        if perf_counter() < adaptation.look_at or adaptation.sleeps(self._is_other_short) == self._is_direct:
            self._now.send_order()
            return
        self._word[0] = not self._is_direct
        self._words[:] = 0  # Before any rank writes its next slot.
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
            self._words[0] = 0
            self._change()

    def send_bytes(self, data: np.ndarray) -> None:
        self._now.send_bytes(data)

    def receive_bytes(self, data: np.ndarray) -> None:
        self._now.receive_bytes(data)

    def send_slot(self, num_rows: int) -> None:
        if not self._is_direct and perf_counter() >= self._adaptation.look_at:
            self._words[0] = self._adaptation.is_short()
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
