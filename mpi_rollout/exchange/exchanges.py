"""All exchanges of a rank.

One over all ranks is lockstep; two over halves of the envs are double buffering; with one for each rank, the rank that
is ready first is served first.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.layout import Contents, SlotLayout
from mpi_rollout.core.partition import Division
from mpi_rollout.exchange.control import CommControl, Control
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.shared_memory import shared_zeros
from mpi_rollout.exchange.surviving import ShrinkingTransport, SurvivingControl
from mpi_rollout.exchange.transports import (
    Buffers,
    CollectiveTransport,
    DirectTransport,
    NoTransport,
    SwitchingTransport,
    Transport,
)
from mpi_rollout.exchange.waiting import Wait, wait_maker
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


LEAST_NBYTES = 2**16  # Of a slot.  To share smaller ones gains some microseconds at most (results/measured/README.md).


class Exchanges:
    """All exchanges of this rank, and the rare messages of all ranks.  **Collective** to make and to free.

    Attributes
    ----------
    all
        In env order: on the root all exchanges, elsewhere those that this rank takes part in.
    control
        The rare messages.
    num_slots, rank_of_slot
        All slots of all ranks, in env order, and the rank of each.
    callers
        The exchanges whose orders reach every other rank once: calls of services go by them.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        division: Division,
        contents: Contents,
        is_surviving: bool = False,  # The job goes on without ranks that are lost, see `surviving`.
        way: str = "spin",  # How ranks wait, see `waiting.wait_maker`.
    ) -> None:
        self.division, self.contents, self.is_surviving, self.way = division, contents, is_surviving, way
        self._make_wait = wait_maker(way)
        self._wait = self._make_wait()
        self.num_stepping = len(division.stepping_ranks)
        partitions = division.partitions
        self._comms = [comm.Dup()] if division.first_ready else [comm.Dup() for _ in partitions]
        comms = self._comms * len(partitions) if division.first_ready else self._comms
        self.all: list[Exchange] = []
        self.num_slots = 0
        memory = self._shared_memory(1)
        for exchange_comm, (first_rank, partition) in zip(comms, partitions, strict=True):
            if comm.rank == ROOT or comm.rank in range(first_rank, first_rank + partition.num_ranks):
                make_transport = self._transport_maker(first_rank)
                self.all.append(
                    Exchange(exchange_comm, partition, first_rank, contents, make_transport, self.num_slots, memory)
                )
            self.num_slots += partition.num_ranks
        transport = self.all[0].transport
        self.control: Control
        if isinstance(transport, ShrinkingTransport):
            self.control = SurvivingControl(transport)
        else:
            self.control = CommControl(comm.Dup())
        self.rank_of_slot = np.concatenate([first + np.arange(partition.num_ranks) for first, partition in partitions])
        self.callers = [each for each in self.all if each.first_rank != ROOT] if division.first_ready else self.all[:1]
        self._noted: list[int] = []  # Callers whose slots have come, and are not taken yet.
        self._take_requests()

    def _shared_memory(self, room: int) -> np.ndarray | None:
        """Return room for all slots, (num_slots, room, nbytes), if it pays and the ranks can share it.  **Collective**.

        A job that goes on without lost ranks keeps to messages: nobody knows what such a rank has written.
        """
        if self.division.num_ranks == 1 or self.is_surviving:
            return None
        partitions = [partition for _, partition in self.division.partitions]
        nbytes = SlotLayout(self.contents, max(partition.capacity for partition in partitions)).nbytes
        if room * nbytes < LEAST_NBYTES:
            return None
        shape = sum(partition.num_ranks for partition in partitions), room, nbytes
        memory = shared_zeros(self._comms[0], math.prod(shape))
        return None if memory is None else memory.reshape(shape)

    def make_room(self, num_rows: int) -> None:
        """Make room in all slots for fragments of so many steps; for between two orders.  **Collective**."""
        memory = self._shared_memory(num_rows)
        for exchange in self.all:
            exchange.make_room(num_rows, memory)
        self._take_requests()

    def _take_requests(self) -> None:
        """Take the requests for the next messages of all and of callers; other slots have other requests."""
        self._direct, self._called = (
            [each.transport for each in exchanges if isinstance(each.transport, DirectTransport)]
            for exchanges in (self.all, self.callers)
        )
        self._arrivals, self._slot_arrivals = (
            [transport.arrival for transport in transports] for transports in (self._direct, self._called)
        )

    def _transport_maker(self, first_rank: int) -> Callable[[Buffers], Transport]:
        if self.is_surviving:
            return ShrinkingTransport
        if self.division.num_ranks == 1 or (self.division.first_ready and first_rank == ROOT):
            return NoTransport
        if self.division.first_ready or len(self.division.partitions) > 1 or self.way == "sleep":
            return partial(DirectTransport, wait=self._make_wait())
        return partial(SwitchingTransport, wait=Wait()) if self.way == "adapt" else CollectiveTransport

    def receive_order(self) -> Exchange:
        """Wait for the next order of any exchange."""
        exchange = self.all[0]
        if len(self.all) > 1:
            for transport in self._direct:
                transport.listen()
            exchange = self.all[self._wait.any(self._arrivals)]
        exchange.receive_order()
        return exchange

    def arrived(self, wait: bool) -> list[Exchange]:
        """Return the other ranks' exchanges whose slots have come since the last call, or `wait` for one at least."""
        if wait and self.callers and not self._noted:
            self._noted = self._wait.some(self._slot_arrivals)
        else:
            self.has_arrivals()
        arrived = sorted(self._noted)
        self._noted = []
        for index in arrived:
            self._called[index].note_arrival()
        return [self.callers[index] for index in arrived]

    def has_arrivals(self) -> bool:
        """Tell whether other ranks' slots have come, which `arrived` would return; with first ready only."""
        if requests := self._slot_arrivals:  # MPI leaves out those that are not under way.
            self._noted += requests[0].Testsome(requests) or ()
        return bool(self._noted)

    def forget_arrivals(self) -> None:
        """Forget which slots have come: all that were under way have been taken."""
        self._noted = []

    def free(self) -> None:
        """Give the communicators back.  **Collective**."""
        for exchange in self.all:
            exchange.free()
        self.control.free()
        # Nobody knows whether all ranks are there to free a communicator that shrinks together.
        for comm in () if self.is_surviving else self._comms:
            comm.Free()
