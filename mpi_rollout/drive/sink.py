"""Where the rows of a run go: the seam `Sink`, and the sinks that need no file.

MemorySink    keeps all rows as arrays
DiscardSink   keeps none, where only the throughput counts

`storage.writer.Writer` is the one that writes files.  This module knows neither it nor who collects the rows.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Protocol

import numpy as np

from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.layout import Block


class Sink(Protocol):
    """Takes the rows of all steps in their order, block by block.

    One thread calls it, that of the collector: `acquire`, then `submit`, again and again, and `drain` where it must
    know that all is kept.  A sink may work in threads of its own.

    *Blocks.*  A block that was acquired is the caller's alone until it is submitted as a whole.  The caller sets
    `block.start`, the step of its row 0.  The first block begins at a multiple of `num_rows`, and each next one where
    the one before ends.  Its arrays hold whatever they held before; the caller fills them in any order, those of some
    envs before those of others.  It may hold all blocks of a sink at a time, so that a sink cannot keep one back.

    *Rows.*  `submit(block, num_rows)` is for the oldest block that the caller holds.  Its first `num_rows` rows are
    complete, and more than these only if `num_rows < block.num_rows`: row `num_rows` then has the columns of what came
    after the last step (observations, infos, `alive`; see `columns.has_last_row`).  A block may be submitted many
    times as it fills, with as many rows as before or more, also with none.  What was complete once does not change.
    All that lies behind it does, also while a sink reads it.

    *Whole blocks.*  With `num_rows == block.num_rows` the block is the sink's.  It gives it out again when it has read
    all of it.  What came after its last step is in row 0 of the next block: so its last step counts when that block is
    submitted, with any number of rows.

    A sink writes into no block, and keeps no view of one that it gives out again.  If a method cannot keep rows it
    raises an error of `mpi_rollout.errors`.  That may be later than the call that gave the rows, and from then on each
    call raises it; the steps that are committed stay.
    """

    @property
    def num_rows(self) -> int:
        """The rows of each block, a power of two: a file has whole chunks then."""

    @property
    def num_committed(self) -> int:
        """The steps that are kept whatever happens; it never gets less.  0 of a sink that keeps none.

        It may be behind what was submitted until `drain` returns.
        """

    def acquire(self) -> Block:
        """Return a block that the caller does not hold, one of few objects that come again and again.

        Wait for it while the sink reads all those that the caller does not hold; Python must handle signals meanwhile.
        """

    def submit(self, block: Block, num_rows: int) -> None:
        """Take what is new in the first `num_rows` rows of a block, and what came after them if the block has it.

        The block need not come from `acquire`: one of as many rows and the same arrays joins the others.
        """

    def drain(self) -> None:
        """Wait until all that was submitted is committed."""


class MemorySink:
    """Keeps all rows as arrays.  `blocks` are those that go round."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.num_rows = blocks[0].num_rows
        self.num_committed = 0
        self._free = list(blocks)
        self._parts: list[dict[str, np.ndarray]] = []  # The named arrays of each block so far.
        self._start = self._num_seen = 0  # Steps: where the first block begins, and all whose rows are kept.

    def acquire(self) -> Block:
        return self._free.pop()

    def submit(self, block: Block, num_rows: int) -> None:
        if not self._parts:
            self._start = self._num_seen = block.start
        if len(self._parts) * self.num_rows == block.start - self._start:
            self._parts.append({name: np.zeros_like(array) for name, array in block.named.items()})
        is_whole, new = num_rows == block.num_rows, self._num_seen - block.start
        for name, part in self._parts[-1].items():
            stop = num_rows + (has_last_row(name) and not is_whole)
            part[new:stop] = block.named[name][new:stop]
        self._num_seen = block.start + num_rows
        self.num_committed = self._num_seen - is_whole
        if is_whole:
            self._free.append(block)

    def drain(self) -> None:
        """Return at once: what is submitted is kept."""

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """Copies of all rows so far, by name: one for each step, or one more, see `columns.has_last_row`.

        The first row is of the step where the first block began: 0, or in a continued run the last multiple of
        `num_rows` that its earlier start had come to.
        """
        num_steps = self.num_committed - self._start
        names = self._parts[0] if self._parts else {}
        whole = {name: np.concatenate([part[name] for part in self._parts]) for name in names}
        return {name: rows[: num_steps + has_last_row(name)] for name, rows in whole.items()}


class DiscardSink:
    """Keeps no rows.  `blocks` are those that go round."""

    num_committed = 0

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.num_rows = blocks[0].num_rows
        self.acquire = cycle(blocks).__next__

    def submit(self, block: Block, num_rows: int) -> None:
        """Leave the block as it is: it comes again when all others have come."""

    def drain(self) -> None:
        """Return at once: nothing is kept."""
