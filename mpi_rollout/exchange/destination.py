"""Where slots are laid: a block of steps, seen as the ranks' slots are."""

import numpy as np

from mpi_rollout.core.layout import Block, split_by_rank
from mpi_rollout.exchange.exchange import Exchange


class Destination:
    """A block seen as the slots are: a few strided copies, however many ranks and envs.

    Observations are laid at once, since a policy waits for them.  Of a step's results only the heads of the slots
    are kept, in one copy; `unpack` makes columns of them for many steps at a time.
    """

    def __init__(self, exchange: Exchange, block: Block, slots: slice):
        layout, runs = exchange.layout, exchange.partition.ranges
        self.block, self._slots = block, slots
        self._slot_heads = exchange.slots[:, : layout.head_nbytes]
        self._heads = np.zeros((block.num_rows, *self._slot_heads.shape), np.uint8)
        step_s, *_ = layout.header(self._heads.reshape(-1, layout.head_nbytes))
        self._step_s = step_s.reshape(block.num_rows, exchange.partition.num_ranks)
        self._observations = [
            (target, part[run.ranks, : run.envs_per_rank])
            for array, part in zip(block.observation_arrays, exchange.columns.observation_arrays, strict=True)
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
        self.block.step_s[rows, self._slots] = self._step_s[rows]
        for target, source in self._results:
            target[rows] = source[rows]
