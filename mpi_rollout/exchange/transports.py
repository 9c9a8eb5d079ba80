"""How an order goes out and its slots come back.

Each rank makes a transport for its buffers.  The root calls `post_order` and `await_slots`, the other ranks call
`await_order` and `post_slot`.  An order and a slot are single buffers of bytes, so each is one message.  A fragment has
one message more: the actions of its steps, after the order that says how many they are.

Transport             no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step
NonblockingTransport  nonblocking collectives: a rank can take part in several of these, and obey the first order

`direct` has two more, by messages between the root and each of some ranks.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mpi_rollout.exchange.waiting import Wait
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
        self._own, self._all = self._described = self._buffers(self._room)
        self._num_described = self._room

    def _part(self, num_rows: int) -> tuple[Message, Message]:
        """Describe the first rows; of the last number of rows this is known."""
        if self._num_described != num_rows:
            self._num_described, self._described = num_rows, self._buffers(num_rows)
        return self._described

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
            self.comm.Gatherv(*self._part(num_rows), ROOT)

    await_slots = post_slot

    def spread(self, value: Message = None) -> Message:
        return self.comm.bcast(value, ROOT)

    @property
    def buffers(self) -> tuple["MPI.Intracomm", np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Return what the constructor takes."""
        return self.comm, self._order_bytes, self._slot, self._slots


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
        return self.comm.Igatherv(*self._part(num_rows), ROOT)

    def finish(self) -> None:
        while self._sent:
            self._sent.pop().Wait()
