"""How an order goes out and its slots come back: the seam `Transport`, and the transport of blocking collectives.

An order and a slot are single buffers of bytes, so each is one message.  Some orders have one message more: the actions
of a fragment, or other bytes, after the order that says how many they are.

NoTransport           no messages: the root to itself
CollectiveTransport   blocking collectives: all ranks at once, the cheapest per step

`direct` has those that let a rank wait for several messages at once, or sleep meanwhile, and that of a usual run, which
switches between both ways.  `surviving` has one that goes on without lost ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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

    A transport whose ranks are never lost raises nothing but what MPI raises.  `RankLost` says that a rank was lost
    amid a round with more than an order and slots: the round is void on all ranks that are left.
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
