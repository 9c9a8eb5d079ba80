"""How an order goes out and its slots come back: three ways with the same verbs.

Each rank makes one for its buffers and calls `post_order` and `await_slots` on the root, `await_order` and
`post_slot` elsewhere, in turn.  An order and a slot are single buffers of bytes, so either is one message.

Lockstep    blocking collectives: all ranks at once, the cheapest per step
Overlapped  nonblocking collectives: a rank can be in several of these and obey whose order comes first
Direct      messages between the root and one rank, which delays nobody else
Alone       the root to itself
"""

from typing import Any

import numpy as np

from mpi_rollout.mpi import ROOT

ORDER_TAG, SLOT_TAG, OBJECT_TAG, INFOS_TAG = 1, 2, 3, 4


class Alone:
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

    def await_order(self) -> None:
        self.comm.Bcast(self._order, ROOT)

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

    def __init__(self, comm: Any, order: np.ndarray, slot: np.ndarray, slots: np.ndarray | None):
        super().__init__(comm, order, slot, slots)
        self._sent: Any = None
        self.arrival = None if slots is not None else comm.Ibcast(self._order, ROOT)

    def post_order(self) -> None:
        self.finish()
        self._sent = self.comm.Ibcast(self._order, ROOT)

    def await_order(self) -> None:
        self.arrival.Wait()
        self.finish()  # It is over: the root has sent another order.

    def post_slot(self) -> None:
        self._sent = self.comm.Igather(self._slot, None, ROOT)
        self.listen()

    def listen(self) -> None:
        """Expect an order."""
        self.arrival = self.comm.Ibcast(self._order, ROOT)

    def await_slots(self) -> None:
        self.comm.Igather(self._slot, self._slots, ROOT).Wait()

    def finish(self) -> None:
        """Wait until what was sent has left."""
        if self._sent is not None:
            self._sent.Wait()
            self._sent = None


class Direct:
    """Persistent sends and receives between the root and rank `peer`.

    `arrival` is the request of what this rank waits for: the slot on the root, the order elsewhere.
    """

    def __init__(self, comm: Any, order: np.ndarray, slot: np.ndarray, peer: int):
        from mpi4py import MPI

        self.comm, self._peer = comm, peer
        order_message, slot_message = [order, MPI.BYTE], [slot, MPI.BYTE]
        if comm.rank == ROOT:
            self._post = comm.Send_init(order_message, peer, ORDER_TAG)
            self.arrival = comm.Recv_init(slot_message, peer, SLOT_TAG)
        else:
            self._post = comm.Send_init(slot_message, ROOT, SLOT_TAG)
            self.arrival = comm.Recv_init(order_message, ROOT, ORDER_TAG)
        self._is_listening = self._is_posted = False
        if comm.rank != ROOT:
            self.listen()

    def post_order(self) -> None:
        self.listen()
        self._send()

    def await_slots(self) -> None:
        self._arrive()

    def await_order(self) -> None:
        self._arrive()

    def post_slot(self) -> None:
        self.listen()
        self._send()

    def listen(self) -> None:
        """Be ready to receive, before the other side is told to send; not all orders are answered by a slot."""
        if not self._is_listening:
            self.arrival.Start()
            self._is_listening = True

    def _arrive(self) -> None:
        self.arrival.Wait()
        self._is_listening = False

    def _send(self) -> None:
        self.finish()
        self._post.Start()
        self._is_posted = True

    def spread(self, value: Any = None) -> Any:
        """Send a Python object from the root to the peer, pickled, between an order and its slot."""
        if self.comm.rank == ROOT:
            self.comm.send(value, self._peer, OBJECT_TAG)
            return value
        return self.comm.recv(source=ROOT, tag=OBJECT_TAG)

    def finish(self) -> None:
        """Wait until what was sent has left."""
        if self._is_posted:
            self._post.Wait()

    def free(self) -> None:
        self.finish()
        self._post.Free()
        if self._is_listening:
            self.arrival.Cancel()
            self.arrival.Wait()
        self.arrival.Free()
