"""The rows of a recording that the sink does not have yet."""

from collections.abc import Callable

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.layout import Block
from mpi_rollout.drive.blocks import Blocks
from mpi_rollout.drive.sink import Sink

NUM_BLOCKS = 3
OWN_ACTION = -1  # The version of the policy where the trainer gave the action.


class RecordedRows:
    """Rows in blocks, in the order of their steps.  States are observations, and the infos that are stored.

    `make_block` makes another block where all are open: a fragment is long, or slow ranks are far behind others.
    """

    def __init__(self, sink: Sink, make_block: Callable[[], Block], mode: AutoresetMode):
        self._sink = sink
        self._make_block = make_block
        # Without them the observation after an end is the next episode's.
        self._has_finals_behind = mode != AutoresetMode.SAME_STEP
        self.blocks = Blocks(self._acquire)
        self.at = self.blocks.at
        self._num_blocks = NUM_BLOCKS  # All blocks: open, free, and with the sink.
        self._cut: dict[int, np.ndarray] = {}  # By step, which envs were reset after it: their final states are there.
        # Ends of episodes in the rows that the sink has, if no reset followed, and those in the last one of them.
        self.num_ends = self.num_last = 0
        self._num_seen = 0

    def _acquire(self, num_open: int) -> Block:
        if num_open == self._num_blocks:
            self._num_blocks += 1
            block = self._make_block()
        else:
            block = self._sink.acquire()
        for array in block.final_arrays:
            array[...] = np.zeros((), array.dtype)
        for array in block.extra_arrays:  # Nobody gives any with an action of the trainer's own.
            array[...] = np.nan if array.dtype.kind in "fc" else 0
        if block.extra_arrays:
            block.extra_arrays[-1][...] = OWN_ACTION
        return block

    def make_room(self, step: int) -> None:
        """See that there is a row for a step; wait for the disk if need be."""
        while step >= self.blocks.stop:
            self.blocks.extend()

    def ends(self, step: int, envs: slice) -> np.ndarray:
        """Tell for some envs whether they ended in a step."""
        block, row = self.at(step)
        return block.terminations[row, envs] | block.truncations[row, envs]

    def cut(self, step: int, envs: np.ndarray, is_running: np.ndarray) -> None:
        """Keep the last states of envs that are reset after a step; truncate the episodes that are running."""
        (before, row), (after, next_row) = self.at(step), self.at(step + 1)
        before.truncations[row, envs[is_running]] = True
        self._cut.setdefault(step, np.zeros(before.truncations.shape[1], np.bool_))[envs] = True
        ended = envs if self._has_finals_behind else envs[is_running]  # The others have their last states already.
        for final, states in zip(before.final_arrays, after.shown_arrays, strict=True):
            final[row, ended] = states[next_row, ended]

    def hand_in(self, num_final: int, commits: bool = False) -> None:
        """Give the sink the blocks whose rows are final; with `commits`, all rows that are."""
        while num_final >= (block := self.blocks.oldest).start + block.num_rows:
            self._see(block, block.num_rows)
            self._sink.submit(self.blocks.close_oldest(), block.num_rows)
        num_rows = num_final - block.start
        if commits and num_rows >= 0:
            self._see(block, num_rows)
            self._sink.submit(block, num_rows)

    def _see(self, block: Block, stop: int) -> None:
        """Count the ends in rows that are about to go, and find the last states of these episodes."""
        start, self._num_seen = max(self._num_seen - block.start, 0), block.start + stop
        if start == stop:
            return
        ended = block.terminations[start:stop] | block.truncations[start:stop]
        for step in [step for step in self._cut if step < block.start + stop]:
            ended[step - block.start - start] &= ~self._cut.pop(step)
        rows, envs = np.nonzero(ended)
        rows += start
        self.num_ends, self.num_last = self.num_ends + len(rows), int(np.count_nonzero(rows == stop - 1))
        if not (self._has_finals_behind and len(rows)):
            return
        for final, states in zip(block.final_arrays, block.shown_arrays, strict=True):
            final[rows, envs] = states[np.minimum(rows + 1, block.num_rows - 1), envs]
        if stop == block.num_rows and self.num_last:
            after, next_row = self.at(block.start + stop)
            last = envs[rows == stop - 1]
            for final, states in zip(block.final_arrays, after.shown_arrays, strict=True):
                final[-1, last] = states[next_row, last]
