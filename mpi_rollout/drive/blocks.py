"""The blocks that are being filled, in the order of their steps.

Lanes go on by themselves: a fast one fills a block of later steps while a slow one still fills an earlier block.
"""

from collections import deque
from collections.abc import Callable

from mpi_rollout.core.layout import Block


class Blocks:
    """The blocks that are being filled, of equally many rows.

    `acquire` is called with the number of open blocks.  It gives another block, or None where the oldest must be closed
    first.  `stop` is the first step that has no row yet.
    """

    def __init__(self, acquire: Callable[[int], Block | None]):
        self._acquire = acquire
        self._open: deque[Block] = deque()
        self._newest: Block
        self.stop = 0

    @property
    def oldest(self) -> Block:
        return self._open[0]

    def extend(self) -> bool:
        """Open another block, whose first row is that of step `stop`; tell whether there was one."""
        block = self._acquire(len(self._open))
        if block is None:
            return False
        block.start, self.stop = self.stop, self.stop + block.num_rows
        self._newest = block
        self._open.append(block)
        return True

    def close_oldest(self) -> Block:
        """Take out the block whose rows are complete."""
        return self._open.popleft()

    def at(self, step: int) -> tuple[Block, int]:
        """Return where the row of a step is."""
        row = step - self._newest.start
        if row >= 0:  # The usual case.
            return self._newest, row
        first = self._open[0]
        index, row = divmod(step - first.start, first.num_rows)
        return self._open[index], row

    def pieces(self, step: int, num_steps: int) -> list[tuple[Block, slice, slice]]:
        """Return where the rows of some steps are: blocks, their rows, and which of the steps these are."""
        pieces, done = [], 0
        while done < num_steps:
            block, row = self.at(step + done)
            num_here = min(num_steps - done, block.num_rows - row)
            pieces.append((block, slice(row, row + num_here), slice(done, done + num_here)))
            done += num_here
        return pieces

    def room(self, step: int, num_steps: int) -> int:
        """Return the number of steps from `step` on, at most `num_steps`, that have rows in one block.

        The observation after them needs a row as well, which may be the first one of another block.  Call it before an
        order is sent: from then on its slots must be received, even if no block can be had.
        """
        block, row = self.at(step)
        num_left = block.num_rows - row
        if num_steps < num_left:
            return num_steps
        return num_left if step + num_left < self.stop or self.extend() else num_left - 1
