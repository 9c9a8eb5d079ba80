"""The blocks that are being filled, and how far each lane is in them.

Lanes go on by themselves: a fast one fills a block of later steps while a slow one still fills an earlier block.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from mpi_rollout.core.layout import Block, Destination
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import Lane


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
    destinations: dict[Lane, Destination]

    @property
    def start(self) -> int:
        return self.block.start

    @property
    def stop(self) -> int:
        return self.block.start + self.block.num_rows


@dataclass(eq=False)
class LaneProgress:
    """How far one lane is: it has taken `step` steps, and its last observations are in row `row` of `open_block`.

    The step under way leads to row `next_row` of `next_block`.
    """

    lane: Lane
    open_block: OpenBlock
    step: int = 0
    row: int = 0
    next_block: OpenBlock = field(init=False)
    next_row: int = 0

    def move_on(self) -> None:
        """Take the step under way as taken."""
        self.open_block, self.row = self.next_block, self.next_row
        self.step += 1


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
            self._prepared[id(block)] = OpenBlock(block, self._driver.destinations(block))
        self._open.append(self._prepared[id(block)])
        self._driver.clock.lap("write")
        return self._open[-1]

    def close_oldest(self) -> Block:
        """Take out the block whose rows are complete."""
        return self._open.popleft().block

    def find_room(self, progress: LaneProgress) -> bool:
        """Find where the next step of a lane goes; return whether there is such a place.

        Call it before the lane's order is posted: from then on its slots must be awaited, even if the writer fails.
        """
        if progress.row + 1 < progress.open_block.block.num_rows:
            progress.next_block, progress.next_row = progress.open_block, progress.row + 1
            return True
        place = self._open.index(progress.open_block) + 1
        if place == len(self._open):
            if place == self._num_blocks:
                return False  # Slower lanes still fill the first of these.
            self.open(self._open[-1].stop)
        progress.next_block, progress.next_row = self._open[place], 0
        return True
