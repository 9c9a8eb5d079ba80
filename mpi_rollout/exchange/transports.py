"""How an order goes out and its slots come back.

Each rank makes a transport for its buffers.  The root calls `post_order` and `await_slots`, the other ranks call
`await_order` and `post_slot`.  An order and a slot are single buffers of bytes, so each is one message.  A fragment has
one message more: the actions of its steps, after the order that says how many they are.

Transport             no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step
NonblockingTransport  nonblocking collectives: a rank can take part in several of these, and obey the first order
DirectTransport       messages between the root and each of some ranks.  No rank passes on what another one waits for:
                      with one rank nobody else is delayed, and ranks may sleep while they wait
SwitchingTransport    collective, and direct while other programs share the cores
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpi_rollout.core.layout import SHORT
from mpi_rollout.exchange.waiting import Adaptation, Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

Message: TypeAlias = Any  # A Python object that is sent pickled.
ORDER_TAG, SLOT_TAG, OBJECT_TAG, INFOS_TAG, ACTIONS_TAG = 1, 2, 3, 4, 5


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

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        """Send and receive other slots from now on, of shape (num_rows, nbytes); for when none is under way."""

    def send_actions(self, actions: np.ndarray) -> None:
        """Send the actions of a fragment, right after its order; they must stay as they are until its slots come."""

    def await_actions(self, actions: np.ndarray) -> None:
        """Receive the actions of a fragment."""

    def post_slot(self, num_rows: int) -> None:
        """Send the first rows of this rank's slot."""

    def await_slots(self, num_rows: int) -> None:
        """Receive the first rows of all slots."""

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
        This rank's own, of shape (num_rows, nbytes); on the root one of `slots`, or None.
    slots
        Of shape (num_ranks, num_rows, nbytes) on the root, else None.
    """

    def __init__(
        self, comm: "MPI.Intracomm", order: np.ndarray, slot: np.ndarray | None, slots: np.ndarray | None
    ) -> None:
        from mpi4py import MPI

        self.comm, self._order_bytes, self._byte = comm, order, MPI.BYTE
        self._order = (order.data, MPI.BYTE)
        self.use_slots(slot, slots)

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        self._slot, self._slots = slot, slots
        self._room = len(slot) if slot is not None else slots.shape[1] if slots is not None else 0
        self._own, self._all = self._buffers(self._room)

    def _buffers(self, num_rows: int) -> tuple[Message, Message]:
        """Describe the first rows of this rank's slot and of all slots, as MPI takes them.

        Whole slots lie one after the other, as Gather wants them; parts of them need Gatherv.
        """
        from mpi4py import MPI

        own: Message = None
        all_slots: Message = None
        if self._slots is not None:
            num_ranks, room, nbytes = self._slots.shape
            counts = [num_rows * nbytes] * num_ranks
            places = range(0, num_ranks * room * nbytes, room * nbytes)
            is_whole = num_rows == room
            all_slots = (
                (self._slots.data, counts[0], MPI.BYTE)
                if is_whole
                else (self._slots.data, counts, list(places), MPI.BYTE)
            )
            own = MPI.IN_PLACE  # The root's own slot is in its place already.
        elif self._slot is not None:
            own = (self._slot[:num_rows].data, MPI.BYTE)
        return own, all_slots

    def post_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

    send_order = await_order = post_order

    def send_actions(self, actions: np.ndarray) -> None:
        self.comm.Bcast((actions.data, self._byte), ROOT)

    await_actions = send_actions

    def post_slot(self, num_rows: int) -> None:
        if num_rows == self._room:
            self.comm.Gather(self._own, self._all, ROOT)
        else:
            self.comm.Gatherv(*self._buffers(num_rows), ROOT)

    await_slots = post_slot

    def spread(self, value: Message = None) -> Message:
        return self.comm.bcast(value, ROOT)

    def direct(self, ranks: range, wait: Wait) -> "DirectTransport":
        """Make a transport of direct messages for the same buffers."""
        return DirectTransport(self.comm, self._order_bytes, self._slot, self._slots, ranks, wait)


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
        self._sent: list[MPI.Request] = []
        if slots is None:
            self.listen()

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
        return self.comm.Igatherv(*self._buffers(num_rows), ROOT)

    def finish(self) -> None:
        while self._sent:
            self._sent.pop().Wait()


class DirectTransport(Transport):
    """Persistent sends and receives between the root and each of some other ranks.

    Parameters
    ----------
    slot, slots
        As those of `CollectiveTransport`.
    ranks
        Those of `slots`, on the root; it exchanges messages with all of them but itself.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        order: np.ndarray,
        slot: np.ndarray | None,
        slots: np.ndarray | None,
        ranks: range,
        wait: Wait,
    ) -> None:
        self.comm, self._ranks, self._wait = comm, ranks, wait
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
    ranks, wait
        Of the `DirectTransport`, which is made when it is needed for the first time.
    is_direct
        One number in the order: 1 if messages are direct from this order on, 0 if they are collective.

    Attributes
    ----------
    mark
        Those of the rows of this rank's slot; None on a root without envs.
    """

    def __init__(
        self,
        collective: CollectiveTransport,
        ranks: range,
        wait: Wait,
        is_direct: np.ndarray,
    ) -> None:
        self._collective, self._ranks, self._wait, self._order_is_direct = collective, ranks, wait, is_direct.data
        self._direct: DirectTransport | None = None
        self._adaptation, self._is_other_short = Adaptation(), False
        self.mark: np.ndarray | None = None
        self._use(collective)

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
            self._direct = self._direct or self._collective.direct(self._ranks, self._wait)
            self._use(self._direct)

    def note_shortage(self) -> None:
        """Note on the root that a slot has come with the mark `SHORT`."""
        self._is_other_short = True

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        self._collective.use_slots(slot, slots)
        if self._direct is not None:
            self._direct.use_slots(slot, slots)

    def post_slot(self, num_rows: int) -> None:
        is_short = not self._is_direct and self._adaptation.watch.is_short()
        if is_short and self.mark is not None and self.mark[0] == 0:
            self.mark[0] = SHORT
        self._now.post_slot(num_rows)

    def free(self) -> None:
        if self._direct is not None:
            self._direct.free()
