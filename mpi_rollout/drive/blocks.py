"""The blocks that are being filled, and how far each lane is in them.

Lanes go on by themselves: a fast one fills a block of later steps while a slow one still fills an earlier block.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from mpi_rollout.core.layout import Block, SlotUnpacker
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.lanes import Lane


class Sink(Protocol):
    """Where full blocks go: `storage.Writer`, or `Discard`.

    `num_rows` is the length of its blocks.
    """

    num_rows: int

    def acquire(self) -> Block:
        """Wait for a block to fill, and return it."""

    def submit(self, block: Block, num_rows: int) -> None:
        """Take the first `num_rows` rows and the observations after them, where the block has those.

        A full block comes back by `acquire`; another goes on growing and is submitted again.
        """


class Discard:
    """Where blocks go when only the throughput counts."""

    def __init__(self, blocks: list[Block]):
        self._blocks, self._turn, self.num_rows = blocks, 0, blocks[0].num_rows

    def acquire(self) -> Block:
        self._turn += 1
        return self._blocks[self._turn % len(self._blocks)]

    def submit(self, block: Block, num_rows: int) -> None:
        pass


@dataclass(frozen=True, eq=False)
class OpenBlock:
    """A block that is being filled, and how each lane's slots are laid into it."""

    block: Block
    unpackers: dict[Lane, SlotUnpacker]

    @property
    def start(self) -> int:
        return self.block.start

    @property
    def stop(self) -> int:
        return self.block.start + self.block.num_rows


@dataclass(eq=False)
class LaneProgress:
    """How far one lane is: it has taken `step` steps, and its last observations are in row `row` of `open_block`.

    The fragment under way has `num_rows` steps at most, and leads to row `next_row` of `next_block`.
    """

    lane: Lane
    open_block: OpenBlock
    step: int = 0
    row: int = 0
    next_block: OpenBlock = field(init=False)
    next_row: int = 0
    num_rows: int = 1

    def take_in(self, num_rows: int) -> None:
        """Lay the slots of the lane into its rows, so many steps, and move on."""
        unpacker, is_cut = self.open_block.unpackers[self.lane], num_rows < self.num_rows
        if is_cut:
            self.next_block, self.next_row = self.open_block, self.row + num_rows
        num_here = num_rows - (self.next_block is not self.open_block)
        if num_here:
            unpacker.lay_observations(self.row + 1, 0, num_here)
        if num_here < num_rows:
            self.next_block.unpackers[self.lane].lay_observations(0, num_here, num_rows)
        unpacker.lay_results(self.row, num_rows)
        self.open_block, self.row = self.next_block, self.next_row
        self.step += num_rows


class OpenBlocks:
    """The blocks of a sink that are being filled, in the order of their steps.

    Parameters
    ----------
    num_blocks
        How many the sink has: as many can be filled at a time.
    """

    def __init__(self, driver: Driver, sink: Sink, num_blocks: int):
        self._driver, self._sink, self._num_blocks = driver, sink, num_blocks
        self._prepared: dict[int, OpenBlock] = {}  # Of each block that the sink has given, by its identity.
        self._open: deque[OpenBlock] = deque()

    @property
    def oldest(self) -> OpenBlock:
        return self._open[0]

    def open(self, start: int) -> OpenBlock:
        """Begin another block, whose first row is that of step `start`; wait for one that is written."""
        block = self._sink.acquire()
        block.start = start
        if id(block) not in self._prepared:
            self._prepared[id(block)] = OpenBlock(block, self._driver.unpackers(block))
        self._open.append(self._prepared[id(block)])
        self._driver.clock.lap("write")
        return self._open[-1]

    def close_oldest(self) -> Block:
        """Take out the block whose rows are complete."""
        return self._open.popleft().block

    def has_room(self, progress: LaneProgress) -> bool:
        """Tell whether there is a place for the next step of a lane; begin another block if need be.

        Call it before the lane's order is posted: from then on its slots must be awaited, even if the writer fails.
        """
        return progress.row + 1 < progress.open_block.block.num_rows or self._has_next(progress)

    def _has_next(self, progress: LaneProgress) -> bool:
        """Tell whether there is a block after that of a lane; begin one if need be."""
        if self._open[-1] is progress.open_block:
            if len(self._open) == self._num_blocks:
                return False  # Slower lanes still fill the first of these.
            self.open(self._open[-1].stop)
        return True

    def find_room(self, progress: LaneProgress, num_steps: int) -> int:
        """Find where the next steps of a lane go, at most so many, after `has_room`; return how many."""
        num_left = progress.open_block.block.num_rows - progress.row
        progress.num_rows = min(num_steps, num_left)
        if progress.num_rows == num_left and not self._has_next(progress):
            progress.num_rows -= 1
        progress.next_block, progress.next_row = progress.open_block, progress.row + progress.num_rows
        if progress.num_rows == num_left:
            place = self._open.index(progress.open_block) + 1
            progress.next_block, progress.next_row = self._open[place], 0
        return progress.num_rows
