"""An exchange: an order goes out, and slots come back.  These are the only messages of a step.

`orders` describes the order, and `layout.SlotLayout` the slot that comes back.  Both are single buffers that are laid
out beforehand, so a step pickles nothing.  `transports` has the ways that they travel.

A fragment is several steps between two exchanges.  The actions of its steps follow the order as a message of their own,
or the ranks choose them.  Each step fills a row of the slot, and as many rows come back.

Only infos that have no column are pickled: they follow the slot in a message of its rank, if its envs say anything.

Large slots lie in memory that all ranks share, where they can: see `shared_memory`.  Then a rank writes where the root
reads, and its message is a mere flag, which says that the slot is full.  The root is done with a slot before its next
order goes out, so there is one of each.
"""

import math
import pickle
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.layout import Block, Columns, Contents, SlotLayout, SlotUnpacker
from mpi_rollout.core.partition import Partition
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.infos import RankInfos, plain
from mpi_rollout.exchange.orders import Command, Order
from mpi_rollout.exchange.transports import INFOS_TAG, Buffers, Slots, Transport
from mpi_rollout.exchange.world import ROOT
from mpi_rollout.text import words_of

if TYPE_CHECKING:
    from mpi4py import MPI

WAY_OUT = 'name the infos that are wanted, or connect(..., infos="none")'
FLAG_NBYTES = 8
RowInfos = tuple[int, bytes | RankInfos]  # A row of a slot, and what its envs say.


class Exchange:
    """The messages between the root and the ranks of one partition, whose rank 0 is the rank `first_rank` of `comm`.

    The communicator is for exchanges only.

    Attributes
    ----------
    order, infos
        The last order, and the infos that follow the slots.
    room
        The largest number of steps of a fragment.
    slots
        On the root the slots of all ranks, packed, of shape (num_ranks, room, nbytes).
    marks
        On the root the marks of the slots' rows, of shape (num_ranks, room).
    slot_columns
        The columns of `Block.step_s` that are for these slots.
    step_s
        On the root the seconds that the ranks' envs took for the last order.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        partition: Partition,
        first_rank: int,
        contents: Contents,
        make_transport: Callable[[Buffers], Transport],
        first_slot: int = 0,
        memory: np.ndarray | None = None,
    ) -> None:
        self.contents, self.partition, self.envs = contents, partition, partition.envs_of(comm.rank - first_rank)
        ranks = range(first_rank, first_rank + partition.num_ranks)
        self.slot_columns = slice(first_slot, first_slot + partition.num_ranks)
        self.comm, self.first_rank, self.has_own_slot = comm, first_rank, comm.rank in ranks
        self.order = Order(partition, self.envs, contents.action_space)
        self.layout = SlotLayout(contents, partition.capacity)
        self.infos = SlotInfos(comm, partition, first_rank)
        self._slot_rows: list[Columns] = []
        order = self.order
        self.transport = make_transport(Buffers(comm, order.buffer, order.word, self._lay_out_slots(1, memory), ranks))

    @property
    def slot_rows(self) -> list[Columns]:
        """Return the columns of each row of this rank's slot."""
        if not self._slot_rows:
            self._slot_rows = [self.layout.columns(row, len(self.envs)) for row in self._slot]
        return self._slot_rows

    def make_room(self, num_rows: int, memory: np.ndarray | None = None) -> None:
        """Make room in slots for fragments of so many steps.  All ranks do it between the same two orders."""
        self.transport.use_slots(self._lay_out_slots(num_rows, memory))

    def _lay_out_slots(self, room: int, memory: np.ndarray | None) -> Slots:
        """Make this rank's slot, and on the root those of all ranks; return what the transport carries for them."""
        layout, num_ranks, is_root = self.layout, self.partition.num_ranks, self.comm.rank == ROOT
        shape, own = (num_ranks, room, layout.nbytes), self.comm.rank - self.first_rank
        self.room, self._is_shared = room, memory is not None
        if memory is not None:
            slots = memory[self.slot_columns].reshape(-1)[: math.prod(shape)].reshape(shape)
            carried = np.zeros((num_ranks, 1, FLAG_NBYTES), np.uint8)
        else:
            carried = slots = np.zeros(shape if is_root else (1, *shape[1:]), np.uint8)
            own = 0
        words = marks = None
        if is_root:
            self.slots, self.columns = slots, layout.columns(slots, layout.capacity)
            header = layout.header(slots.reshape(-1, layout.nbytes))
            fields = (field.reshape(num_ranks, room) for field in header)
            step_s, self.marks, has_infos, words_of_rows, self.num_ended = fields
            self.step_s, self.infos.has_message = step_s[:, 0], has_infos[:, 0]
            words, marks = words_of_rows[:, 0], self.marks[:, 0]
        if self.has_own_slot:
            self._slot: np.ndarray = slots[own]
            self._slot_rows = []
            header = layout.header(self._slot)
            self.own_step_s, self.own_marks, self._own_has_infos, own_words, self.own_num_ended = header
            words = own_words[:1] if words is None else words
            self.slot = layout.columns(self._slot, len(self.envs))
        assert words is not None, "each rank of an exchange has a slot, or receives some"
        return Slots(carried[own] if self.has_own_slot else None, carried if is_root else None, words, marks)

    def send_steps(self, actions: Sequence[np.ndarray] | None, num_steps: int, step: int) -> None:
        """Order steps, the first of which is `step`: the root's side of `receive_order`.

        The actions are an array (num_steps, num_envs, ...) for each leaf, see `Order.put`; None leaves them to the
        ranks.
        """
        if actions is not None:
            if num_steps > 1:
                self.transport.finish()  # What was sent before is not in the buffer's way any more.
            self.order.put(actions, num_steps)
        self.send_order(Command.STEP, num_steps, step, actions is None)
        if num_steps > 1 and actions is not None:
            self.transport.send_bytes(self.order.fragment)

    def send_order(self, command: Command, argument: int = 0, step: int = -1, is_chosen: bool = False) -> None:
        """Send another order, see `Command`."""
        self.order.write(command, argument, step, is_chosen)
        self.transport.send_order()

    def receive_order(self) -> None:
        """Wait for the root's next order, and for the actions that follow it."""
        self.transport.receive_order()
        self.infos.finish()
        self.order.read()
        if self.order.has_fragment:
            self.order.hold(self.order.num_rows)
            self.transport.receive_bytes(self.order.fragment)

    def send_bytes(self, command: Command, data: np.ndarray) -> None:
        """Send an order and right after it bytes; they must stay as they are until the next slots come."""
        self.send_order(command, data.nbytes)
        self.transport.send_bytes(data)

    def receive_bytes(self) -> np.ndarray:
        """Receive what follows the order."""
        data = np.empty(self.order.argument, np.uint8)
        self.transport.receive_bytes(data)
        return data

    def send_slot(self) -> None:
        """Send this rank's slot, and the infos that follow it: a worker's side of `receive_slots`."""
        self._own_has_infos[0] = self.infos.post()
        self.transport.send_slot(1 if self._is_shared else self.order.num_rows)

    def receive_slots(self) -> None:
        """Wait for all slots.  Then a `SlotUnpacker` lays them into rows, in env order."""
        self.transport.receive_slots(1 if self._is_shared else self.order.num_rows)

    def take(self, column: np.ndarray, rows: slice | np.ndarray = slice(None), step: int = 0) -> np.ndarray:
        """Copy rows, counted in env order, of one of `columns`, from the slots' row of a step."""
        slot, row = self.partition.places
        return np.asarray(column[slot[rows], step, row[rows]])

    def end_episodes(self, slot: int, observation_arrays: Sequence[np.ndarray]) -> None:
        """Mark in the slot of a lost rank that the episodes of its envs are over, whose last observations these are."""
        rows = len(self.partition.envs_of(slot))
        self.slots[slot, :, : self.layout.head_nbytes] = 0
        self.num_ended[slot] = rows
        self.columns.truncations[slot] = True
        for column, array in zip(self.columns.observation_arrays, observation_arrays, strict=True):
            column[slot, :, :rows] = array
        for column in self.columns.alive_arrays:
            column[slot] = False
        for values, mask in self.columns.info_arrays:
            values[slot], mask[slot] = 0, False

    def unpacker(self, block: Block) -> SlotUnpacker:
        """Return a block as these slots see it, on the root."""
        return SlotUnpacker(block, self.layout, self.partition, self.slots, self.slot_columns)

    def free(self) -> None:
        """Give back what the transport holds."""
        self.transport.finish()
        self.infos.finish()
        self.transport.free()


class SlotInfos:
    """The infos of one exchange, on the rank that sends them and on the root.

    On the root, `has_message` has a number for each slot: not 0 if a message follows the slot.
    """

    def __init__(self, comm: "MPI.Intracomm", partition: Partition, first_rank: int):
        self._comm, self._partition, self._first_rank = comm, partition, first_rank
        self._is_root, self._has_others = comm.rank == ROOT, partition.num_ranks > 1 or first_rank != ROOT
        self._own: list[RowInfos] = []
        self._sending: MPI.Request | None = None
        self.has_message = np.zeros(0, np.int64)

    def put(self, infos: RankInfos, row: int, is_kept: bool) -> None:
        """Send infos of a step with this rank's slot; if they `is_kept` as they are, the root's own are not copied."""
        self._own.append((row, infos if self._is_root and is_kept else pack_infos(infos)))

    def forget(self) -> None:
        """Begin another slot, which has no infos yet."""
        self._own = []

    def post(self) -> bool:
        """Send the infos of this rank's slot, if there are any."""
        if self._own:
            self._sending = self._comm.isend(self._own, ROOT, INFOS_TAG)
        return bool(self._own)

    def finish(self) -> None:
        """Wait until what was sent has left."""
        if self._sending is not None:
            self._sending.wait()
            self._sending = None

    def take(self) -> list[tuple[int, slice, RankInfos]]:
        """Receive the infos that follow the slots; return row, envs of the partition and infos, where there are any."""
        if not (self._own or self._has_others):  # The usual case in one process.
            return []
        taken = []
        for rank, infos in self.receive():
            envs, first = self._partition.envs_of(rank), self._partition.first_env
            places = slice(envs.start - first, envs.stop - first)
            taken += [(row, places, self._unpacked(places, given)) for row, given in infos]
        return taken

    def receive(self) -> list[tuple[int, list[RowInfos]]]:
        """Receive the infos, also if nobody needs them: the ranks that have sent them wait until then."""
        received = [(ROOT, self._own)] if self._own else []
        self._own = []
        if np.count_nonzero(self.has_message):
            slots = np.flatnonzero(self.has_message).tolist()
            received += [(slot, self._comm.recv(source=self._first_rank + slot, tag=INFOS_TAG)) for slot in slots]
            self.has_message[:] = 0
        return received

    def _unpacked(self, places: slice, given: bytes | RankInfos) -> RankInfos:
        if not isinstance(given, bytes):
            return given
        try:
            infos: RankInfos = pickle.loads(given)
            return infos
        except Exception as error:
            first = self._partition.first_env
            raise DataError(
                f"envs {first + places.start} to {first + places.stop - 1}: their infos cannot be read on rank 0: "
                f"{words_of(error)}; {WAY_OUT}"
            ) from error


def pack_infos(infos: RankInfos) -> bytes:
    """Pickle the infos of a rank's envs.

    DataError if something in them cannot be pickled.
    """
    try:
        return pickle.dumps(infos, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        # A class of dicts may not be picklable where what is in them is: a defaultdict with a lambda.
        infos = plain(infos) if isinstance(infos, dict) else [(row, plain(info)) for row, info in infos]
        pairs = [infos] if isinstance(infos, dict) else [info for _, info in infos]
        for key, value in chain.from_iterable(info.items() for info in pairs):
            try:
                pickle.dumps(value)
            except Exception as cause:
                raise DataError(f"info {key!r} cannot be sent: {words_of(cause)}; {WAY_OUT}") from error
        return pickle.dumps(infos, pickle.HIGHEST_PROTOCOL)
