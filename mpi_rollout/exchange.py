"""An order goes out, slots come back: the only messages of a step.

Order, broadcast from the root: command, exit code, then the actions of all envs, leaf by leaf.  Slot, gathered to
the root: see `layout.SlotLayout`.  Both are single buffers laid out once, so a step is one Bcast and one Gather of
bytes, nothing is pickled and no rank but the slowest is waited for.

Measured on two cores under Open MPI 5 (2026-11-21): gathering a large observation column by a Gatherv of its own
to its final place, instead of unpacking it from the slot, is slower below 64 KiB a rank, saves 20 % of an
exchange at 3 MiB, and that is 1 % of a step of the image envs for which it happens.  So there is one way only.
"""

from enum import IntEnum
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.layout import RESULTS, Block, SlotLayout, leaves, split_by_rank, tree_of
from mpi_rollout.mpi import ROOT
from mpi_rollout.partition import Partition

FAULT = 1  # A slot's mark; the negative number of a signal asks for the run's end; 0 is all is well.


class Command(IntEnum):
    """What an order asks of a rank."""

    RESET = 1
    STEP = 2
    CALL = 3
    STOP = 4


class Exchange:
    """The messages between the root and all ranks.  **Collective** to make, use and free.

    Parameters
    ----------
    comm
        Duplicated: nobody else's messages can get between.
    partition, observation_space, action_space
        The same on all ranks; spaces of a single env.
    """

    def __init__(self, comm: Any, partition: Partition, observation_space: spaces.Space, action_space: spaces.Space):
        from mpi4py import MPI

        self.comm = comm.Dup()
        self.partition = partition
        self.is_root = comm.rank == ROOT
        self.envs = partition.envs_of(comm.rank)
        self._lay_out_order(action_space)
        self._lay_out_slots(observation_space)
        self._order_message = [self._order, MPI.BYTE]
        if self.is_root:  # The root's own slot is already in its place.
            self._slot_message = MPI.IN_PLACE
            self._slots_message = [self._slots, self.layout.nbytes, MPI.BYTE]
        else:
            self._slot_message = [self._slot, MPI.BYTE]
            self._slots_message = None

    def _lay_out_order(self, action_space: spaces.Space) -> None:
        """Header of two int64, then the actions in columns of (num_envs, ...)."""
        group = leaves(action_space)
        sizes = [-(-self.partition.num_envs * leaf.nbytes // 8) * 8 for leaf in group]
        offsets = np.cumsum([16, *sizes])
        self._order = np.zeros(offsets[-1], np.uint8)
        self._header = self._order[:16].view(np.int64)
        self._command: Command | None = None
        self.action_arrays = tuple(
            np.ndarray((self.partition.num_envs, *leaf.shape), leaf.dtype, self._order, int(offset))
            for leaf, offset in zip(group, offsets[:-1], strict=True)
        )
        mine = slice(self.envs.start, self.envs.stop)
        self.actions = tree_of(action_space, (array[mine] for array in self.action_arrays))

    def _lay_out_slots(self, observation_space: spaces.Space) -> None:
        self.layout = SlotLayout(observation_space, self.partition.capacity)
        if self.is_root:
            self._slots = np.zeros((self.partition.num_ranks, self.layout.nbytes), np.uint8)
            self._slot = self._slots[ROOT]
            _, self.marks = self.layout.header(self._slots)
            self._observation_parts = self.layout.parts(self._slots, self.partition.capacity)[len(RESULTS) :]
        else:
            self._slot = np.zeros(self.layout.nbytes, np.uint8)
        self.own_step_s, self.own_mark = self.layout.header(self._slot[None])
        self.slot = self.layout.one(self._slot, len(self.envs))

    def post_order(self, command: Command, code: int = 0) -> None:
        """Send the order out.  **Collective**: the root's side of `await_order`."""
        if command != self._command:  # In a run of steps the header stays as it is.
            self._command = command
            self._header[:] = command, code
        self.comm.Bcast(self._order_message, ROOT)

    def await_order(self) -> tuple[Command, int]:
        """Wait for the root's next order; its actions are in `actions`, this rank's rows, until the next call."""
        self.comm.Bcast(self._order_message, ROOT)
        command, code = self._header.tolist()
        return command, code

    def post_slot(self) -> None:
        """Send this rank's slot.  **Collective**: a worker's side of `await_slots`."""
        self.comm.Gather(self._slot_message, None, ROOT)

    def await_slots(self) -> None:
        """Wait for every rank's slot.  Afterwards a `Destination` lays them into rows, in env order."""
        self.comm.Gather(self._slot_message, self._slots_message, ROOT)

    def collect(self, value: Any) -> list[Any] | None:
        """Gather one Python object of each rank on the root, pickled: for what happens rarely.  **Collective.**"""
        return self.comm.gather(value, ROOT)

    def spread(self, value: Any = None) -> Any:
        """Broadcast a Python object of the root, pickled: for what happens rarely.  **Collective.**"""
        return self.comm.bcast(value, ROOT)

    def destination(self, block: Block) -> "Destination":
        """Prepare a block for having slots laid into its rows."""
        return Destination(self, block)

    def free(self) -> None:
        """Give the communicator back.  **Collective.**"""
        self.comm.Free()


class Destination:
    """A block seen as the slots are: a few strided copies, however many ranks and envs.

    Observations are laid at once, since a policy waits for them.  Of a step's results only the heads of the slots
    are kept, in one copy; `unpack` makes columns of them for many steps at a time.
    """

    def __init__(self, exchange: Exchange, block: Block):
        layout, runs = exchange.layout, exchange.partition.runs
        self.block = block
        self._slot_heads = exchange._slots[:, : layout.head_nbytes]
        self._heads = np.zeros((block.num_rows, *self._slot_heads.shape), np.uint8)
        self._step_s, _ = layout.header(self._heads.reshape(-1, layout.head_nbytes))
        self._step_s = self._step_s.reshape(block.step_s.shape)
        self._observations = [
            (target, part[run.ranks, : run.envs_per_rank])
            for array, part in zip(block.observation_arrays, exchange._observation_parts, strict=True)
            for run, target in zip(runs, split_by_rank(array, exchange.partition), strict=True)
        ]
        self._results = [
            (target, part[:, run.ranks, : run.envs_per_rank])
            for array, part in zip(block.results, layout.results(self._heads), strict=True)
            for run, target in zip(runs, split_by_rank(array, exchange.partition), strict=True)
        ]

    def lay_observations(self, row: int) -> None:
        for target, source in self._observations:
            target[row] = source

    def lay_results(self, row: int) -> None:
        self._heads[row] = self._slot_heads

    def unpack(self, start: int, stop: int) -> None:
        """Make columns of the results of rows start to stop."""
        rows = slice(start, stop)
        self.block.step_s[rows] = self._step_s[rows]
        for target, source in self._results:
            target[rows] = source[rows]
