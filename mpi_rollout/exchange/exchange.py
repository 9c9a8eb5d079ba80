"""An exchange: an order goes out, and slots come back.  These are the only messages of a step.

The order of the root has a command, an exit code, how messages travel from then on (`SwitchingTransport`), and the
actions of the exchange's envs, leaf by leaf.  `layout.SlotLayout` describes the slot that comes back.  Both are single
buffers that are laid out once, so a step pickles nothing.  `transports` has the ways that they travel.

Measured on two cores under Open MPI 5 (2026-11-21): a Gatherv of its own brings a large observation column directly to
its final place.  Compared with unpacking it from the slot, this is slower below 64 KiB a rank, and saves 20 % of an
exchange at 3 MiB.  That is 1 % of a step of the image envs for which it happens.  So there is only one way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.layout import Block, Destination, SlotLayout
from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, Space, leaves, tree_of
from mpi_rollout.errors import DataError, words_of
from mpi_rollout.exchange.infos import InfoDict, pack_infos, unpack_infos
from mpi_rollout.exchange.surviving import ShrinkingTransport
from mpi_rollout.exchange.transports import (
    INFOS_TAG,
    CollectiveTransport,
    DirectTransport,
    Message,
    NonblockingTransport,
    SwitchingTransport,
    Transport,
)
from mpi_rollout.exchange.waiting import Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


class Command(IntEnum):
    """What an order asks of a rank."""

    RESET = 1
    STEP = 2
    CALL = 3
    STOP = 4
    RESTORE = 5
    REPLAY = 6
    SWITCH = 7


@dataclass(frozen=True)
class Contents:
    """What orders and slots carry: the spaces of a single env, and what slots have besides results and observations."""

    observation_space: Space
    action_space: Space
    has_final_observations: bool = False
    infos: tuple[Leaf, ...] = ()


class Exchange:
    """The messages between the root and the ranks of one partition.

    Parameters
    ----------
    comm
        A communicator for exchanges only.
    partition
        Its rank 0 is the rank `first_rank` of the communicator.
    kind
        The class of the transport.
    wait
        How this rank waits.

    Attributes
    ----------
    slots
        On the root the slots of all ranks, packed, of shape (num_ranks, nbytes).
    infos
        Rows of the partition and infos of this rank's last slot.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        partition: Partition,
        first_rank: int,
        contents: Contents,
        kind: type[Transport],
        wait: Wait,
    ) -> None:
        self.comm, self.partition, self.first_rank = comm, partition, first_rank
        self.is_root = comm.rank == ROOT
        self.envs = partition.envs_of(comm.rank - first_rank)
        self._lay_out_order(contents.action_space)
        self._lay_out_slots(contents)
        self.infos: list[tuple[slice, InfoDict]] = []
        self._infos_to_send = b""
        self._infos_sent: MPI.Request | None = None
        self.transport = self._make_transport(kind, wait)

    def _make_transport(self, kind: type[Transport], wait: Wait) -> Transport:
        buffers = self.comm, self._order, self._slot, self.slots if self.is_root else None
        if kind is DirectTransport:
            direct = self._make_direct(wait)
            if not self.is_root:
                direct.listen()
            return direct
        if kind is SwitchingTransport:
            mark = self.own_mark if self.has_own_slot else None
            collective = CollectiveTransport(*buffers)
            return SwitchingTransport(collective, lambda: self._make_direct(wait), self._header[2:], mark)
        if kind is NonblockingTransport:
            return NonblockingTransport(*buffers, wait)
        if kind is ShrinkingTransport:
            return ShrinkingTransport(*buffers, self.marks if self.is_root else None, self.layout.nbytes)
        return CollectiveTransport(*buffers) if kind is CollectiveTransport else Transport()

    def _make_direct(self, wait: Wait) -> DirectTransport:
        first = self.first_rank
        if self._slot is not None and not self.is_root:
            return DirectTransport(self.comm, self._order, [self._slot], [ROOT], wait)
        peers = [rank for rank in range(first, first + self.partition.num_ranks) if rank != ROOT]
        return DirectTransport(self.comm, self._order, [self.slots[peer - first] for peer in peers], peers, wait)

    def _lay_out_order(self, action_space: Space) -> None:
        """Lay out a header of three int64, then the actions in columns of (num_envs, ...)."""
        group = leaves(action_space)
        sizes = [-(-self.partition.num_envs * leaf.nbytes // 8) * 8 for leaf in group]
        offsets = np.cumsum([24, *sizes])
        self.order_nbytes = int(offsets[-1])
        self._order = np.zeros(self.order_nbytes, np.uint8)
        self._header = self._order[:24].view(np.int64)
        self._command: Command | None = None
        self.action_arrays = tuple(
            np.ndarray((self.partition.num_envs, *leaf.shape), leaf.dtype, self._order, int(offset))
            for leaf, offset in zip(group, offsets[:-1], strict=True)
        )
        first = self.partition.first_env
        own_rows = slice(self.envs.start - first, self.envs.stop - first)
        self.actions = tree_of(action_space, (array[own_rows] for array in self.action_arrays))

    def _lay_out_slots(self, contents: Contents) -> None:
        capacity = self.partition.capacity
        self.layout = SlotLayout(contents.observation_space, capacity, contents.has_final_observations, contents.infos)
        self.has_own_slot = self.comm.rank - self.first_rank in range(self.partition.num_ranks)
        self._slot: np.ndarray | None
        if self.is_root:
            self.slots = np.zeros((self.partition.num_ranks, self.layout.nbytes), np.uint8)
            self._slot = self.slots[ROOT] if self.has_own_slot else None
            _, self.marks, self._infos_nbytes = self.layout.header(self.slots)
            self.columns = self.layout.columns(self.slots, capacity)
        else:
            self._slot = np.zeros(self.layout.nbytes, np.uint8)
        if self._slot is not None:
            self.own_step_s, self.own_mark, self._own_infos_nbytes = self.layout.header(self._slot[None])
            self.slot = self.layout.one(self._slot, len(self.envs))

    def put_actions(self, arrays: Sequence[np.ndarray], start: int) -> None:
        """Fill the order with the rows of the actions from `start` on, an array for each leaf."""
        for array, target in zip(arrays, self.action_arrays, strict=True):
            target[...] = array[start : start + len(target)]

    def post_order(self, command: Command, code: int = 0) -> None:
        """Send the order out: the root's side of `await_order`.

        Parameters
        ----------
        code
            STOP: the job's exit code.  SWITCH: the number of the connection that sends the next orders.
        """
        if command != self._command:  # In a run of steps the header stays as it is.
            self._command = None if code else command
            self._header[:2] = command, code
        self.transport.post_order()

    def await_order(self) -> None:
        """Wait for the root's next order.  Then `order` has its command, and `actions` this rank's rows."""
        self.transport.await_order()
        if self._infos_sent is not None:
            self._infos_sent.Wait()
            self._infos_sent = None

    @property
    def order(self) -> tuple[Command, int]:
        """Return the command and the code of the last order."""
        command, code, _ = self._header.tolist()
        return command, code

    def put_infos(self, infos: InfoDict) -> None:
        """Send infos with this rank's slot."""
        if self.is_root:
            first = self.partition.first_env
            rows = slice(self.envs.start - first, self.envs.stop - first)
            self.infos = [(rows, infos)] if infos else []
            return
        self._infos_to_send = pack_infos(infos) if infos else b""
        self._own_infos_nbytes[0] = len(self._infos_to_send)

    def post_slot(self) -> None:
        """Send this rank's slot: a worker's side of `await_slots`."""
        self.transport.post_slot()
        if self._infos_to_send:
            self._infos_sent = self.comm.Isend(self._infos_to_send, ROOT, INFOS_TAG)

    def await_slots(self) -> None:
        """Wait for all slots.  Then a `Destination` lays them into rows, in env order."""
        self.transport.await_slots()

    def take_infos(self) -> list[tuple[slice, InfoDict]]:
        """Receive the infos that follow the slots; return rows and infos of the ranks whose envs had any."""
        own, self.infos = self.infos, []
        return own + [(rows, self._unpack(rows, pickled)) for rows, pickled in self._receive_infos()]

    def drop_infos(self) -> None:
        """Receive the infos and drop them: the ranks have sent them, and wait until they are received."""
        self.infos = []
        self._receive_infos()

    def _receive_infos(self) -> list[tuple[slice, np.ndarray]]:
        if not np.count_nonzero(self._infos_nbytes):
            return []
        from mpi4py import MPI

        received = []
        for slot in np.flatnonzero(self._infos_nbytes).tolist():
            pickled = np.empty(self._infos_nbytes[slot], np.uint8)
            self.comm.Recv((pickled.data, MPI.BYTE), self.first_rank + slot, INFOS_TAG)
            envs, first = self.partition.envs_of(slot), self.partition.first_env
            received.append((slice(envs.start - first, envs.stop - first), pickled))
        self._infos_nbytes[:] = 0  # They are taken.
        return received

    def _unpack(self, rows: slice, pickled: np.ndarray) -> InfoDict:
        try:
            return unpack_infos(pickled.data)
        except Exception as error:
            first = self.partition.first_env
            raise DataError(
                f"envs {first + rows.start} to {first + rows.stop - 1}: their infos cannot be read on rank 0: "
                f'{words_of(error)}; name the infos that are wanted, or connect(..., infos="none")'
            ) from error

    def take(self, column: np.ndarray, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Copy rows, counted in env order, of one of `columns`."""
        slot, row = self.partition.places
        return np.asarray(column[slot[rows], row[rows]])

    def end_episodes(self, slot: int, observation_arrays: Sequence[np.ndarray]) -> None:
        """Have the slot of a lost rank say from now on that the episodes of its envs are over.

        Parameters
        ----------
        observation_arrays
            The last observations of its envs, leaf by leaf, of shape (envs, ...).
        """
        rows = len(self.partition.envs_of(slot))
        self.slots[slot, : self.layout.head_nbytes] = 0
        self.columns.truncations[slot] = True
        for column, array in zip(self.columns.observation_arrays, observation_arrays, strict=True):
            column[slot, :rows] = array
        for _, mask in self.columns.info_arrays:
            mask[slot] = False

    def spread(self, value: Message = None) -> Message:
        """Send a Python object of the root to these ranks, pickled, right after an order.  Use it for rare messages."""
        return self.transport.spread(value)

    def note_shortage(self) -> None:
        """Note on the root that a slot has come with the mark `SHORT`."""
        if isinstance(self.transport, SwitchingTransport):
            self.transport.note_shortage()

    def destination(self, block: Block, step_s_columns: slice) -> Destination:
        """Return a block as these slots see it, on the root."""
        return Destination(block, self.layout, self.partition, self.slots, step_s_columns)

    def free(self) -> None:
        """Give back what the transport holds."""
        self.transport.finish()
        if self._infos_sent is not None:
            self._infos_sent.Wait()
        self.transport.free()
