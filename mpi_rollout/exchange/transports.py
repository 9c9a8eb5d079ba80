"""How an order goes out and its slots come back: four ways with the same verbs.

Each rank makes one for its buffers and calls `post_order` and `await_slots` on the root, `await_order` and
`post_slot` elsewhere, in turn.  An order and a slot are single buffers of bytes, so either is one message.

Lockstep        blocking collectives: all ranks at once, the cheapest per step
Overlapped      nonblocking collectives: a rank can be in several of these and obey whose order comes first
DirectMessages  messages between the root and each of some ranks: none passes on what another one waits for, so with
                one rank nobody else is delayed, and ranks may sleep while they wait
NoMessages      the root to itself
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_rollout.exchange.world import ROOT

ORDER_TAG, SLOT_TAG, OBJECT_TAG, INFOS_TAG = 1, 2, 3, 4


class NoMessages:
    """No messages: the root is the only rank."""

    arrival = None

    def post_order(self) -> None:
        pass

    def await_slots(self) -> None:
        pass

    def spread(self, value: Any = None) -> Any:
        return value

    def finish(self) -> None:
        pass

    def free(self) -> None:
        pass


class Lockstep:
    """Bcast and Gather.

    Parameters
    ----------
    slot
        This rank's own; on the root a row of `slots`.
    slots
        (num_ranks, nbytes) on the root, else None.
    """

    def __init__(self, comm: Any, order: np.ndarray, slot: np.ndarray, slots: np.ndarray | None):
        from mpi4py import MPI

        self.comm = comm
        self._order = [order, MPI.BYTE]
        self._slot, self._slots = [slot, MPI.BYTE], None
        if slots is not None:  # The root's own slot is already in its place.
            self._slot, self._slots = MPI.IN_PLACE, [slots, slots.shape[1], MPI.BYTE]

    def post_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

    send_order = await_order = post_order

    def post_slot(self) -> None:
        self.comm.Gather(self._slot, None, ROOT)

    def await_slots(self) -> None:
        self.comm.Gather(self._slot, self._slots, ROOT)

    def spread(self, value: Any = None) -> Any:
        """Broadcast a Python object of the root, pickled, between an order and its slots."""
        return self.comm.bcast(value, ROOT)

    def listen(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def free(self) -> None:
        pass


class Overlapped(Lockstep):
    """Ibcast and Igather.  A worker listens for the next order as soon as its slot is on its way."""

    def __init__(self, comm: Any, order: np.ndarray, slot: np.ndarray, slots: np.ndarray | None, waiting: Any):
        super().__init__(comm, order, slot, slots)
        self._waiting, self._sent = waiting, None
        self.arrival = None if slots is not None else comm.Ibcast(self._order, ROOT)

    def post_order(self) -> None:
        self.finish()
        self._sent = self.comm.Ibcast(self._order, ROOT)

    def await_order(self) -> None:
        self._waiting.one(self.arrival)
        self.finish()  # It is over: the root has sent another order.

    def post_slot(self) -> None:
        self._sent = self.comm.Igather(self._slot, None, ROOT)
        self.listen()

    def listen(self) -> None:
        """Expect an order."""
        self.arrival = self.comm.Ibcast(self._order, ROOT)

    def await_slots(self) -> None:
        self._waiting.one(self.comm.Igather(self._slot, self._slots, ROOT))

    def finish(self) -> None:
        """Wait until what was sent has left."""
        if self._sent is not None:
            self._sent.Wait()
            self._sent = None


class DirectMessages:
    """Persistent sends and receives between the root and each of some other ranks.

    Parameters
    ----------
    slots
        On the root those of `peers`, a row each; elsewhere None.
    peers
        On the root who takes part.
    waiting
        See `waiting`.

    Attributes
    ----------
    arrival
        The request of what this rank waits for, if that comes from one other rank: the slot on the root, the order
        elsewhere.
    """

    def __init__(
        self, comm: Any, order: np.ndarray, slot: np.ndarray, slots: np.ndarray | None, peers: Sequence[int],
        waiting: Any,
    ):  # fmt: skip
        self.comm, self._peers, self._waiting = comm, peers, waiting
        if comm.rank == ROOT:
            self._sends = [comm.Send_init(order, peer, ORDER_TAG) for peer in peers]
            self._receives = [comm.Recv_init(row, peer, SLOT_TAG) for row, peer in zip(slots, peers, strict=True)]
        else:
            self._sends = [comm.Send_init(slot, ROOT, SLOT_TAG)]
            self._receives = [comm.Recv_init(order, ROOT, ORDER_TAG)]
        self.arrival = self._receives[0]
        self._is_listening = False

    def post_order(self) -> None:
        self.listen()
        self._send()

    def send_order(self) -> None:
        """Post an order whose slots do not come back by these messages."""
        self._send()

    def await_slots(self) -> None:
        self._arrive()

    def await_order(self) -> None:
        self._arrive()

    def post_slot(self) -> None:
        self.listen()
        self._send()

    def listen(self) -> None:
        """Be ready to receive, before the other side is told to send; not all orders are answered by slots."""
        if not self._is_listening:
            self.arrival.Startall(self._receives)
            self._is_listening = True

    def _arrive(self) -> None:
        self._waiting.all(self._receives)
        self._is_listening = False

    def _send(self) -> None:
        self.finish()
        self.arrival.Startall(self._sends)

    def spread(self, value: Any = None) -> Any:
        """Send a Python object from the root to the others, pickled, between an order and its slots."""
        if self.comm.rank != ROOT:
            return self.comm.recv(source=ROOT, tag=OBJECT_TAG)
        for peer in self._peers:
            self.comm.send(value, peer, OBJECT_TAG)
        return value

    def finish(self) -> None:
        """Wait until what was sent has left: it has, once it was answered."""
        self.arrival.Waitall(self._sends)

    def free(self) -> None:
        self.finish()
        for request in self._receives:
            if self._is_listening:
                request.Cancel()
                request.Wait()
            request.Free()
        for request in self._sends:
            request.Free()
