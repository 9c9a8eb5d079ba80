"""How orders and slots travel by messages between the root and each of some ranks.

No rank passes on what another one waits for.  So with one rank nobody else is delayed, and ranks may sleep while they
wait.

DirectTransport       always
SwitchingTransport    while other programs share the cores; else by collectives
"""

from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.layout import SHORT
from mpi_rollout.exchange.transports import (
    ACTIONS_TAG,
    OBJECT_TAG,
    ORDER_TAG,
    SLOT_TAG,
    CollectiveTransport,
    Message,
    Transport,
)
from mpi_rollout.exchange.waiting import Adaptation, Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


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
            self._direct = self._direct or DirectTransport(*self._collective.buffers, self._ranks, self._wait)
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
