"""How an order goes out and its slots come back.

Each rank makes a transport for its buffers.  The root calls `post_order` and `await_slots`, the other ranks call
`await_order` and `post_slot`.  An order and a slot are single buffers of bytes, so each is one message.  Some orders
have one message more: the actions of a fragment, or other bytes, after the order that says how many they are.

Transport             no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step

`direct` has those that let a rank wait for several messages at once, or sleep meanwhile, and that of a usual run, which
switches between both ways.  `surviving` has one that goes on without lost ranks.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_rollout.exchange.waiting import Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

ORDER_TAG, SLOT_TAG, INFOS_TAG, BYTES_TAG = 1, 2, 3, 4


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
    lost_ranks
        On the root, ranks that have been lost since it last looked.
    """

    arrival: "MPI.Request | None" = None
    lost_ranks: "list[int] | tuple[()]" = ()

    def __init__(self, buffers: Buffers, wait: Wait) -> None:
        self.buffers, self._wait = buffers, wait

    def post_order(self) -> None:
        """Send the order to the ranks."""

    def await_order(self) -> None:
        """Receive the order."""

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        """Send and receive other slots from now on, of shape (num_rows, nbytes); for when none is under way."""

    def send_bytes(self, data: np.ndarray) -> None:
        """Send what follows an order, right after it; it must stay as it is until the next slots come."""

    def await_bytes(self, data: np.ndarray) -> None:
        """Receive what follows an order."""

    def post_slot(self, num_rows: int) -> None:
        """Send the first rows of this rank's slot."""

    def await_slots(self, num_rows: int) -> None:
        """Receive the first rows of all slots."""

    def note_arrival(self) -> None:
        """Note that the message of `arrival` has come, as a look at that request has shown."""

    def listen(self) -> None:
        """Be ready to receive the next message, if no rank has to take part in that at the same time."""

    def is_short(self) -> bool:
        """Tell on a worker whether the root should know that it gets too little processor time."""
        return False

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
        self.comm: MPI.Intracomm = buffers.comm
        self._byte = MPI.BYTE
        self._order = (buffers.order.data, MPI.BYTE)
        self.use_slots(buffers.slot, buffers.slots)

    def use_slots(self, slot: np.ndarray | None, slots: np.ndarray | None) -> None:
        self.buffers = self.buffers._replace(slot=slot, slots=slots)
        self._gathers: dict[int, Callable[[], object]] = {}  # By the number of rows.

    def _gather_of(self, num_rows: int) -> Callable[[], object]:
        """Make the call that gathers the first rows: whole slots lie one after the other, parts of them do not."""
        from mpi4py import MPI

        slot, slots = self.buffers.slot, self.buffers.slots
        if slots is None:
            assert slot is not None, "a worker has a slot"
            gather = self.comm.Gather if num_rows == len(slot) else self.comm.Gatherv
            return partial(gather, (slot[:num_rows].data, MPI.BYTE), None, ROOT)
        num_ranks, room, nbytes = slots.shape
        own = MPI.IN_PLACE  # The root's own slot is in its place already.
        if num_rows == room:
            return partial(self.comm.Gather, own, (slots.data, room * nbytes, MPI.BYTE), ROOT)
        counts, places = [num_rows * nbytes] * num_ranks, [*range(0, num_ranks * room * nbytes, room * nbytes)]
        return partial(self.comm.Gatherv, own, (slots.data, counts, places, MPI.BYTE), ROOT)

    def post_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

    send_order = await_order = post_order

    def send_bytes(self, data: np.ndarray) -> None:
        self.comm.Bcast((data.data, self._byte), ROOT)

    await_bytes = send_bytes

    def post_slot(self, num_rows: int) -> None:
        gather = self._gathers.get(num_rows)
        if gather is None:
            gather = self._gathers[num_rows] = self._gather_of(num_rows)
        gather()

    await_slots = post_slot
