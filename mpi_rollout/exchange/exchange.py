"""An exchange: an order goes out, and slots come back.  These are the only messages of a step.

The order of the root has a command, its argument, how messages travel from then on (`SwitchingTransport`), the step,
and the actions of the exchange's envs, leaf by leaf.  `layout.SlotLayout` describes the slot that comes back.  Both are
single buffers that are laid out beforehand, so a step pickles nothing.  `transports` has the ways that they travel.

A fragment is several steps between two exchanges.  The actions of its steps follow the order as a message of their own,
or the ranks choose them.  Each step fills a row of the slot, and as many rows come back.

Measured on two cores under Open MPI 5 (2026-11-21): a Gatherv of its own brings a large observation column directly to
its final place.  Compared with unpacking it from the slot, this is slower below 64 KiB a rank, and saves 20 % of an
exchange at 3 MiB.  That is 1 % of a step of the image envs for which it happens.  So there is only one way.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.layout import ALIGNMENT, Block, Columns, Destination, SlotLayout
from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, Space, leaves
from mpi_rollout.errors import DataError, words_of
from mpi_rollout.exchange.direct import DirectTransport, SwitchingTransport
from mpi_rollout.exchange.infos import InfoDict, pack_infos, unpack_infos
from mpi_rollout.exchange.orders import Command, Orders
from mpi_rollout.exchange.surviving import ShrinkingTransport
from mpi_rollout.exchange.transports import INFOS_TAG, CollectiveTransport, Message, NonblockingTransport, Transport
from mpi_rollout.exchange.waiting import Wait
from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Contents:
    """What orders and slots carry: the spaces of a single env, and what slots have besides results and observations.

    With `counts_only`, slots do not have those either: nobody reads what the envs give.  `extras` are what a policy
    gives besides actions; where slots have actions, they have these too.  With `keeps_infos` the infos are stored.
    """

    observation_space: Space
    action_space: Space
    has_final_observations: bool = False
    infos: tuple[Leaf, ...] = ()
    has_actions: bool = False
    counts_only: bool = False
    extras: tuple[Leaf, ...] = ()
    keeps_infos: bool = False

    @property
    def kept_infos(self) -> tuple[Leaf, ...]:
        """The infos that blocks have, too."""
        return self.infos if self.keeps_infos else ()


class Exchange(Orders):
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
    room
        The largest number of steps of a fragment.
    slots
        On the root the slots of all ranks, packed, of shape (num_ranks, room, nbytes).
    marks
        On the root those of the slots' rows, of shape (num_ranks, room).
    step_s
        On the root the seconds that the ranks' envs took for the last order.
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
        super().__init__(partition, partition.envs_of(comm.rank - first_rank), contents.action_space)
        self.comm, self.first_rank = comm, first_rank
        self.is_root = comm.rank == ROOT
        self.layout = SlotLayout(
            contents.observation_space,
            partition.capacity,
            contents.has_final_observations,
            contents.infos,
            leaves(contents.action_space) if contents.has_actions else (),
            contents.counts_only,
            contents.extras if contents.has_actions else (),
        )
        self._slot_rows: list[Columns] = []
        self._lay_out_slots(1)
        self._infos: list[tuple[int, bytes | InfoDict]] = []  # Rows of this rank's slot, and their infos.
        self._infos_sent: MPI.Request | None = None
        self.transport = self._make_transport(kind, wait)
        self._show_marks()

    def _make_transport(self, kind: type[Transport], wait: Wait) -> Transport:
        buffers = self.comm, self._order, self._slot, self.slots if self.is_root else None
        ranks = range(self.first_rank, self.first_rank + self.partition.num_ranks)
        if kind is DirectTransport:
            direct = DirectTransport(*buffers, ranks, wait)
            if not self.is_root:
                direct.listen()
            return direct
        if kind is SwitchingTransport:
            return SwitchingTransport(CollectiveTransport(*buffers), ranks, wait, self._header[2:3])
        if kind is NonblockingTransport:
            return NonblockingTransport(*buffers, wait)
        if kind is ShrinkingTransport:
            return ShrinkingTransport(*buffers)
        return CollectiveTransport(*buffers) if kind is CollectiveTransport else Transport()

    @property
    def slot_rows(self) -> list[Columns]:
        """Return the columns of each row of this rank's slot."""
        if not self._slot_rows and self._slot is not None:
            self._slot_rows = [self.layout.columns(row, len(self.envs)) for row in self._slot]
        return self._slot_rows

    def make_room(self, num_rows: int) -> None:
        """Have slots hold fragments of so many steps from now on.  All ranks do it between the same two orders."""
        self._lay_out_slots(num_rows)
        self.transport.use_slots(self._slot, self.slots if self.is_root else None)
        self._show_marks()

    def _show_marks(self) -> None:
        """Have the transport see the marks of the slots, where it has a part in them."""
        if isinstance(self.transport, SwitchingTransport):
            self.transport.mark = self.own_marks if self.has_own_slot else None
        elif isinstance(self.transport, ShrinkingTransport):
            self.transport.marks = self.marks[:, 0] if self.is_root else None

    def _lay_out_slots(self, room: int) -> None:
        layout, num_ranks, rank = self.layout, self.partition.num_ranks, self.comm.rank - self.first_rank
        buffer = np.zeros((num_ranks if self.is_root else 1, room, layout.nbytes), np.uint8)
        self.room, self.has_own_slot = room, rank in range(num_ranks)
        self._slot: np.ndarray | None = None
        if self.is_root:
            self.slots = buffer
            header = layout.header(self.slots.reshape(-1, layout.nbytes))
            step_s, self.marks, infos_nbytes, self.num_ended = (field.reshape(num_ranks, room) for field in header)
            self.step_s, self._infos_nbytes = step_s[:, 0], infos_nbytes[:, 0]
            self.columns = layout.columns(self.slots, layout.capacity)
        if self.has_own_slot or not self.is_root:
            self._slot = buffer[0]
        if self._slot is not None:
            header = layout.header(self._slot)
            self.own_step_s, self.own_marks, self._own_infos_nbytes, self.own_num_ended = header
            self.slot_bytes = self._slot[:, ALIGNMENT:]
            self.slot = layout.columns(self._slot, len(self.envs))
            self._slot_rows = []

    def put_fragment(self, arrays: Sequence[np.ndarray]) -> None:
        self.transport.finish()  # What was sent before is not in the buffer's way any more.
        super().put_fragment(arrays)

    def post_order(self, command: Command, argument: int = 0, step: int = -1) -> None:
        """Send the order out: the root's side of `await_order`.

        Parameters
        ----------
        argument
            STEP, FRAGMENT, CHOOSE: the number of steps.  LOAD: the bytes that follow.  STOP: the job's exit code.
            SWITCH: the number of the connection that sends the next orders.
        step
            The first of these steps.
        """
        self._write_order(command, argument, step)
        self.transport.post_order()
        if command == Command.FRAGMENT:
            self.transport.send_actions(self._fragment)

    def await_order(self) -> None:
        """Wait for the root's next order, and for the actions that follow it."""
        self.transport.await_order()
        if self._infos_sent is not None:
            self._infos_sent.Wait()
            self._infos_sent = None
        self._read_order()
        if self.order[0] == Command.FRAGMENT:
            self._hold_fragment(self.num_rows)
            self.transport.await_actions(self._fragment)

    def send_parameters(self, buffer: np.ndarray) -> None:
        """Send bytes right after the order that names their number; they must stay as they are until the next slots."""
        self.post_order(Command.LOAD, buffer.nbytes)
        self.transport.send_actions(buffer)

    def await_parameters(self) -> np.ndarray:
        """Receive what follows the order."""
        buffer = np.empty(self.order[1], np.uint8)
        self.transport.await_actions(buffer)
        self.transport.listen()
        return buffer

    def put_infos(self, infos: InfoDict, row: int = 0) -> None:
        """Send infos of a step with this rank's slot.

        Raises
        ------
        DataError
            Something in them cannot be pickled.
        """
        if infos:
            # The root's own may stay as they are if nothing is done to them before they are taken.
            is_kept = self.is_root and self.num_rows == 1
            self._infos.append((row, infos if is_kept else pack_infos(infos)))

    def forget_infos(self) -> None:
        """Begin another slot, which has no infos yet."""
        self._infos = []

    def post_slot(self) -> None:
        """Send this rank's slot: a worker's side of `await_slots`."""
        pickled = pickle.dumps(self._infos) if self._infos else b""
        self._own_infos_nbytes[0] = len(pickled)
        self.transport.post_slot(self.num_rows)
        if pickled:
            self._infos_to_send = pickled  # Until it is sent.
            self._infos_sent = self.comm.Isend(pickled, ROOT, INFOS_TAG)

    def await_slots(self) -> None:
        """Wait for all slots.  Then a `Destination` lays them into rows, in env order."""
        self.transport.await_slots(self.num_rows)

    def take_infos(self) -> list[tuple[int, slice, InfoDict]]:
        """Receive the infos that follow the slots; return row, envs of the partition and infos, where there are any."""
        taken = []
        for rank, infos in self._receive_infos():
            envs, first = self.partition.envs_of(rank), self.partition.first_env
            places = slice(envs.start - first, envs.stop - first)
            taken += [(row, places, self._unpack(places, given)) for row, given in infos]
        return taken

    def drop_infos(self) -> None:
        """Receive the infos and drop them: the ranks have sent them, and wait until they are received."""
        self._receive_infos()

    def _receive_infos(self) -> list[tuple[int, list[tuple[int, bytes | InfoDict]]]]:
        received = [(ROOT, self._infos)] if self._infos else []
        self._infos = []
        if not np.count_nonzero(self._infos_nbytes):
            return received
        from mpi4py import MPI

        for slot in np.flatnonzero(self._infos_nbytes).tolist():
            pickled = np.empty(self._infos_nbytes[slot], np.uint8)
            self.comm.Recv((pickled.data, MPI.BYTE), self.first_rank + slot, INFOS_TAG)
            received.append((slot, pickle.loads(pickled.data)))
        self._infos_nbytes[:] = 0  # They are taken.
        return received

    def _unpack(self, places: slice, given: bytes | InfoDict) -> InfoDict:
        if isinstance(given, dict):
            return given
        try:
            return unpack_infos(given)
        except Exception as error:
            first = self.partition.first_env
            raise DataError(
                f"envs {first + places.start} to {first + places.stop - 1}: their infos cannot be read on rank 0: "
                f'{words_of(error)}; name the infos that are wanted, or connect(..., infos="none")'
            ) from error

    def take(self, column: np.ndarray, rows: slice | np.ndarray = slice(None), step: int = 0) -> np.ndarray:
        """Copy rows, counted in env order, of one of `columns`, from the slots' row of a step."""
        slot, row = self.partition.places
        return np.asarray(column[slot[rows], step, row[rows]])

    def end_episodes(self, slot: int, observation_arrays: Sequence[np.ndarray]) -> None:
        """Have the slot of a lost rank say from now on that the episodes of its envs are over.

        Parameters
        ----------
        observation_arrays
            The last observations of its envs, leaf by leaf, of shape (envs, ...).
        """
        rows = len(self.partition.envs_of(slot))
        self.slots[slot, :, : self.layout.head_nbytes] = 0
        self.num_ended[slot] = rows
        self.columns.truncations[slot] = True
        for column, array in zip(self.columns.observation_arrays, observation_arrays, strict=True):
            column[slot, :, :rows] = array
        for values, mask in self.columns.info_arrays:
            values[slot], mask[slot] = 0, False

    def spread(self, value: Message = None) -> Message:
        """Send a Python object of the root to these ranks, pickled, right after an order.  Use it for rare messages."""
        return self.transport.spread(value)

    def note_shortage(self) -> None:
        """Note on the root that a slot has come with the mark `SHORT`."""
        if isinstance(self.transport, SwitchingTransport):
            self.transport.note_shortage()

    def destination(self, block: Block, slot_columns: slice) -> Destination:
        """Return a block as these slots see it, on the root."""
        return Destination(block, self.layout, self.partition, self.slots, slot_columns)

    def free(self) -> None:
        """Give back what the transport holds."""
        self.transport.finish()
        if self._infos_sent is not None:
            self._infos_sent.Wait()
        self.transport.free()
