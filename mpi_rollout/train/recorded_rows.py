"""The rows of a recording that the writer does not have yet."""

from collections import deque
from collections.abc import Callable

import numpy as np

from mpi_rollout.core.layout import Block
from mpi_rollout.storage.writer import Writer

NUM_BLOCKS = 3
OWN_ACTION = -1  # The version of the policy where the trainer gave the action.


class Rows:
    """The rows that the writer does not have yet, in blocks.

    Parameters
    ----------
    make_block
        Makes another block, where slow ranks are so far behind others that the writer has none to give.
    """

    def __init__(self, writer: Writer, make_block: Callable[[], Block]):
        self._writer, self._make_block = writer, make_block
        self._open: deque[Block] = deque()
        self._stop = 0

    def at(self, step: int) -> tuple[Block, int]:
        """Return where the row of a step is."""
        first = self._open[0]
        place, row = divmod(step - first.start, first.num_rows)
        return self._open[place], row

    def make_room(self, step: int) -> None:
        """See that there is a row for a step; wait for the disk if need be."""
        while step >= self._stop:
            block = self._writer.acquire() if len(self._open) < NUM_BLOCKS else self._make_block()
            block.start, self._stop = self._stop, self._stop + block.num_rows
            for array in block.final_observation_arrays:
                array[...] = np.zeros((), array.dtype)
            for array in block.extra_arrays:  # Nobody gives any with an action of the trainer's own.
                array[...] = np.nan if array.dtype.kind in "fc" else 0
            if block.extra_arrays:
                block.extra_arrays[-1][...] = OWN_ACTION
            self._open.append(block)

    def hand_in(self, num_final: int) -> None:
        """Give the writer the blocks whose rows are final."""
        while num_final >= self._open[0].start + self._open[0].num_rows:
            block = self._open.popleft()
            self._writer.submit(block, block.num_rows)

    def commit(self, num_final: int) -> None:
        """Have all final rows committed."""
        self.hand_in(num_final)
        if num_final > self._open[0].start:
            self._writer.submit(self._open[0], num_final - self._open[0].start)

    def finish(self, num_steps: int) -> None:
        """Give the writer all rows, and the observations after them."""
        self.hand_in(num_steps)
        self._writer.submit(self._open[0], num_steps - self._open[0].start)
