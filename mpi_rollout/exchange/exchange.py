"""An order goes out, slots come back: the only messages of a step.

Order, from the root: command, exit code, how messages travel from then on (see `changing`), then the actions of the
exchange's envs, leaf by leaf.  Slot, to the root: see `layout.SlotLayout`.  Both are single buffers laid out once, so
nothing is pickled in a step; how they travel is in `messages`.  One exchange over all ranks is lockstep; two over
halves of the envs are double buffering; one per rank is first ready, first served.

Measured on two cores under Open MPI 5 (2026-11-21): gathering a large observation column by a Gatherv of its own
to its final place, instead of unpacking it from the slot, is slower below 64 KiB a rank, saves 20 % of an
exchange at 3 MiB, and that is 1 % of a step of the image envs for which it happens.  So there is one way only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.layout import Block, Destination, SlotLayout
from mpi_rollout.core.partition import Division, Partition
from mpi_rollout.core.spaces import Leaf, leaves, tree_of
from mpi_rollout.errors import DataError, words_of
from mpi_rollout.exchange.infos import pack_infos, unpack_infos
from mpi_rollout.exchange.surviving import Surviving
from mpi_rollout.exchange.switching import Changing
from mpi_rollout.exchange.transports import INFOS_TAG, DirectMessages, Lockstep, NoMessages, Overlapped
from mpi_rollout.exchange.waiting import Sleeping, waits_of
from mpi_rollout.exchange.world import ROOT


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
    """What orders and slots carry: spaces of a single env, and what slots have besides results and observations."""

    observation_space: spaces.Space
    action_space: spaces.Space
    has_final_observations: bool = False
    infos: tuple[Leaf, ...] = field(default=())


class Exchange:
    """The messages between the root and the ranks of one partition.

    Parameters
    ----------
    comm
        On which only exchanges talk.
    partition
        Its rank 0 is the rank `first_rank` of the communicator.
    kind
        One of the classes of `messages`, or `Changing`.
    waiting
        How this rank waits, see `waiting`.

    Attributes
    ----------
    slots
        On the root those of all ranks, packed, of shape (num_ranks, nbytes).
    """

    def __init__(self, comm: Any, partition: Partition, first_rank: int, contents: Contents, kind: type, waiting: Any):
        self.comm, self.partition, self.first_rank = comm, partition, first_rank
        self.is_root = comm.rank == ROOT
        self.envs = partition.envs_of(comm.rank - first_rank)
        self._lay_out_order(contents.action_space)
        self._lay_out_slots(contents)
        self.infos: list[tuple[slice, dict[str, Any]]] = []  # Of the last slots: rows of the partition, infos.
        self._infos_to_send, self._infos_sent = b"", None
        self.messages = self._make_messages(kind, waiting)

    def _make_messages(self, kind: type, waiting: Any) -> Any:
        buffers = self.comm, self._order, self._slot, self.slots if self.is_root else None
        if kind is NoMessages:
            return NoMessages()
        if kind is DirectMessages:
            messages = self._make_direct(waiting)
            if not self.is_root:
                messages.listen()
            return messages
        if kind is Changing:
            messages = Changing(Lockstep(*buffers), lambda: self._make_direct(waiting), self._header[2:])
            messages.mark = self.own_mark if self.has_own_slot else None
            return messages
        if kind is Overlapped:
            return Overlapped(*buffers, waiting)
        messages = kind(*buffers)
        if kind is Surviving and self.is_root:
            messages.marks = self.marks
        return messages

    def _make_direct(self, waiting: Any) -> DirectMessages:
        first = self.first_rank
        if not self.is_root:
            return DirectMessages(self.comm, self._order, self._slot, None, (), waiting)
        peers = [rank for rank in range(first, first + self.partition.num_ranks) if rank != ROOT]
        return DirectMessages(
            self.comm, self._order, None, [self.slots[peer - first] for peer in peers], peers, waiting
        )

    def _lay_out_order(self, action_space: spaces.Space) -> None:
        """Header of three int64, then the actions in columns of (num_envs, ...)."""
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
        mine = slice(self.envs.start - first, self.envs.stop - first)
        self.actions = tree_of(action_space, (array[mine] for array in self.action_arrays))

    def _lay_out_slots(self, contents: Contents) -> None:
        capacity = self.partition.capacity
        self.layout = SlotLayout(contents.observation_space, capacity, contents.has_final_observations, contents.infos)
        self.has_own_slot = self.comm.rank - self.first_rank in range(self.partition.num_ranks)
        if self.is_root:
            self.slots = np.zeros((self.partition.num_ranks, self.layout.nbytes), np.uint8)
            self._slot = self.slots[ROOT] if self.has_own_slot else None
            _, self.marks, self._infos_nbytes = self.layout.header(self.slots)
            self.columns = self.layout.columns(self.slots, capacity)
        else:
            self._slot = np.zeros(self.layout.nbytes, np.uint8)
        if self.has_own_slot:
            self.own_step_s, self.own_mark, self._own_infos_nbytes = self.layout.header(self._slot[None])
            self.slot = self.layout.one(self._slot, len(self.envs))

    def post_order(self, command: Command, code: int = 0) -> None:
        """Send the order out: the root's side of `await_order`.

        Parameters
        ----------
        code
            STOP: the job's exit code.  SWITCH: the number of the connection whose orders are to be awaited.
        """
        if command != self._command:  # In a run of steps the header stays as it is.
            self._command = None if code else command
            self._header[:2] = command, code
        self.messages.post_order()

    def await_order(self) -> None:
        """Wait for the root's next order: afterwards `order` and `actions`, this rank's rows, are it."""
        self.messages.await_order()
        if self._infos_sent is not None:
            self._infos_sent.Wait()
            self._infos_sent = None

    @property
    def order(self) -> tuple[Command, int]:
        """The command and the code of the last order."""
        command, code, _ = self._header.tolist()
        return command, code

    def put_infos(self, infos: dict[str, Any]) -> None:
        """Have infos go with this rank's slot."""
        if self.is_root:
            first = self.partition.first_env
            rows = slice(self.envs.start - first, self.envs.stop - first)
            self.infos = [(rows, infos)] if infos else []
            return
        self._infos_to_send = pack_infos(infos) if infos else b""
        self._own_infos_nbytes[0] = len(self._infos_to_send)

    def post_slot(self) -> None:
        """Send this rank's slot: a worker's side of `await_slots`."""
        self.messages.post_slot()
        if self._infos_to_send:
            self._infos_sent = self.comm.Isend(self._infos_to_send, ROOT, INFOS_TAG)

    def await_slots(self) -> None:
        """Wait for all slots.  Afterwards a `Destination` lays them into rows, in env order."""
        self.messages.await_slots()

    def take_infos(self) -> list[tuple[slice, dict[str, Any]]]:
        """Receive the infos that follow the slots; return rows and infos of the ranks whose envs had any."""
        own, self.infos = self.infos, []
        return own + [(rows, self._unpack(rows, pickled)) for rows, pickled in self._receive_infos()]

    def drop_infos(self) -> None:
        """Receive them for nobody: the ranks have sent them, and wait until they are received."""
        self.infos = []
        self._receive_infos()

    def _receive_infos(self) -> list[tuple[slice, np.ndarray]]:
        if not np.count_nonzero(self._infos_nbytes):
            return []
        from mpi4py import MPI

        received = []
        for slot in np.flatnonzero(self._infos_nbytes).tolist():
            pickled = np.empty(self._infos_nbytes[slot], np.uint8)
            self.comm.Recv([pickled, MPI.BYTE], self.first_rank + slot, INFOS_TAG)
            envs, first = self.partition.envs_of(slot), self.partition.first_env
            received.append((slice(envs.start - first, envs.stop - first), pickled))
        self._infos_nbytes[:] = 0  # They are taken.
        return received

    def _unpack(self, rows: slice, pickled: np.ndarray) -> dict[str, Any]:
        try:
            return unpack_infos(pickled)
        except Exception as error:
            first = self.partition.first_env
            raise DataError(
                f"envs {first + rows.start} to {first + rows.stop - 1}: their infos cannot be read on rank 0: "
                f'{words_of(error)}; name the infos that are wanted, or connect(..., infos="none")'
            ) from error

    def take(self, column: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Copy rows, counted in env order, of one of `columns`."""
        slot, row = self.partition.places
        return column[slot[rows], row[rows]]

    def still(self, slot: int, observation_arrays: Sequence[np.ndarray]) -> None:
        """Have a slot that comes no more say from now on that its envs' episodes are over.

        Parameters
        ----------
        observation_arrays
            What its envs observed last, leaf by leaf, of shape (envs, ...).
        """
        rows = len(self.partition.envs_of(slot))
        self.slots[slot, : self.layout.head_nbytes] = 0
        self.columns.truncations[slot] = True
        for column, array in zip(self.columns.observation_arrays, observation_arrays, strict=True):
            column[slot, :rows] = array
        for _, mask in self.columns.info_arrays:
            mask[slot] = False

    def spread(self, value: Any = None) -> Any:
        """Send a Python object of the root to these ranks, pickled, right after an order: for what happens rarely."""
        return self.messages.spread(value)

    def destination(self, block: Block, step_s_columns: slice) -> Destination:
        """Return a block as these slots see it, on the root."""
        return Destination(block, self.layout, self.partition, self.slots, step_s_columns)

    def free(self) -> None:
        """Give back what the messages hold."""
        self.messages.finish()
        if self._infos_sent is not None:
            self._infos_sent.Wait()
        self.messages.free()


class Exchanges:
    """All exchanges of this rank, and a communicator for what happens rarely.  **Collective** to make and to free.

    Attributes
    ----------
    all
        In env order; on the root all there are, elsewhere those that this rank takes part in.
    slots
        For each of `all` its columns in `Block.step_s`; `num_slots` in all, `rank_of_slot` has their ranks.
    num_stepping
        Ranks that step envs.
    way
        How ranks wait: "spin", "sleep", or "adapt" to what processor time they get.
    """

    def __init__(
        self, comm: Any, division: Division, contents: Contents, is_surviving: bool = False, way: str = "spin"
    ):
        self.division, self.contents, self._is_surviving, self.way = division, contents, is_surviving, way
        make_waiting = waits_of(way)
        self._waiting = make_waiting()
        self.num_stepping = len(division.stepping_ranks)
        parts = division.parts
        self._comms = [comm.Dup()] if division.first_ready else [comm.Dup() for _ in parts]
        comms = self._comms * len(parts) if division.first_ready else self._comms
        self.all, self.slots, start = [], [], 0
        for part_comm, (first_rank, partition) in zip(comms, parts, strict=True):
            if comm.rank == ROOT or comm.rank in range(first_rank, first_rank + partition.num_ranks):
                kind = self._kind(first_rank)
                waiting = Sleeping() if kind is Changing else make_waiting()
                self.all.append(Exchange(part_comm, partition, first_rank, contents, kind, waiting))
                self.slots.append(slice(start, start + partition.num_ranks))
            start += partition.num_ranks
        self.num_slots = start
        # A communicator that shrinks is one for all, so that all of its ranks are at the same place in what they say.
        self.control = self.all[0].messages if is_surviving else comm.Dup()
        self.rank_of_slot = np.concatenate([first + np.arange(part.num_ranks) for first, part in parts])
        # An order on each of these reaches every other rank once.
        self.callers = [each for each in self.all if each.first_rank != ROOT] if division.first_ready else self.all[:1]

    def _kind(self, first_rank: int) -> type:
        if self._is_surviving:
            return Surviving
        if self.division.num_ranks == 1 or (self.division.first_ready and first_rank == ROOT):
            return NoMessages
        if self.division.first_ready or self.way == "sleep":
            return DirectMessages
        if len(self.division.parts) > 1:
            return Overlapped
        return Changing if self.way == "adapt" else Lockstep

    def await_order(self) -> Exchange:
        """Wait for the next order, whichever exchange it comes by."""
        if len(self.all) == 1:
            exchange = self.all[0]
        else:
            exchange = self.all[self._waiting.any([each.messages.arrival for each in self.all])]
        exchange.await_order()
        return exchange

    def arrived(self, wait: bool) -> list[Exchange]:
        """With first ready: the other ranks' exchanges whose slots have come since they were asked; one at least if
        `wait`.
        """
        requests = [each.messages.arrival for each in self.callers]  # Those not under way are inactive, and left out.
        if not requests:
            return []
        indices = self._waiting.some(requests) if wait else requests[0].Testsome(requests)
        found = [self.callers[index] for index in sorted(indices or ())]
        for exchange in found:
            exchange.await_slots()  # At once: they are there.
        return found

    def collect(self, value: Any) -> list[Any] | None:
        """Gather one Python object of each rank on the root, pickled: for what happens rarely.  **Collective.**"""
        return self.control.gather(value, ROOT)

    def spread(self, value: Any = None) -> Any:
        """Broadcast a Python object of the root, pickled: for what happens rarely.  **Collective.**"""
        return self.control.bcast(value, ROOT)

    def free(self) -> None:
        """Give the communicators back.  **Collective.**"""
        for exchange in self.all:
            exchange.free()
        # Of communicators that shrink nobody knows whether all ranks are there to free them together.
        for comm in () if self._is_surviving else (self.control, *self._comms):
            comm.Free()
