"""How an order goes out and its slots come back.

Each rank makes a transport for its buffers.  The root calls `post_order` and `await_slots`, the other ranks call
`await_order` and `post_slot`.  An order and a slot are single buffers of bytes, so each is one message.  A fragment has
one message more: the actions of its steps, after the order that says how many they are.

Transport             no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step

`switching` has the one of a usual run, `direct` those that let a rank wait for several messages at once, or sleep
meanwhile, and `surviving` one that goes on without lost ranks.
"""

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpi_rollout.exchange.waiting import Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

Message: TypeAlias = Any  # A Python object that is sent pickled.
ORDER_TAG, SLOT_TAG, OBJECT_TAG, INFOS_TAG, ACTIONS_TAG = 1, 2, 3, 4, 5


class Buffers(NamedTuple):
    """What a transport carries, as one rank has it, in bytes."""

    comm: "MPI.Intracomm"
    order: np.ndarray
    slot: np.ndarray | None  # This rank's own, of shape (num_rows, nbytes); on the root one of `slots`, or None.
    slots: np.ndarray | None  # An array of shape (num_ranks, num_rows, nbytes) on the root, else None.
    ranks: range  # Those of `slots`, as ranks of `comm`.


class Transport:
    """No messages: the root is the only rank.  The other transports have the same methods.

    Attributes
    ----------
    arrival
        The request for the next message, if it is a single one: for the slot on the root, for the order elsewhere.
    """

    arrival: "MPI.Request | None" = None

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        self.buffers, self._wait = buffers, wait

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
        """Prepare to receive before the other side is told to send: some orders are not answered by slots."""

    def see_marks(self, own: np.ndarray | None, of_all: np.ndarray | None) -> None:
        """Show the marks of the rows of this rank's slot, and on the root those of all slots' first rows."""

    def note_shortage(self) -> None:
        """Note on the root that a slot has come with the mark `SHORT`."""

    def finish(self) -> None:
        """Wait until the messages of this rank have left."""

    def free(self) -> None:
        """Give the requests back."""


class CollectiveTransport(Transport):
    """Bcast and Gather."""

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        from mpi4py import MPI

        super().__init__(buffers, wait)
        self.comm, self._byte = buffers.comm, MPI.BYTE
        self._order = (buffers.order.data, MPI.BYTE)
        self.use_slots(buffers.slot, buffers.slots)

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        self._slot, self._slots = slot, slots
        self.buffers = self.buffers._replace(slot=slot, slots=slots)
        self._room = len(slot) if slot is not None else slots.shape[1] if slots is not None else 0
        self._own, self._all = self._described = self._describe(self._room)
        self._num_described = self._room

    def _part(self, num_rows: int) -> tuple[Message, Message]:
        """Describe the first rows; of the last number of rows this is known."""
        if self._num_described != num_rows:
            self._num_described, self._described = num_rows, self._describe(num_rows)
        return self._described

    def _describe(self, num_rows: int) -> tuple[Message, Message]:
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
