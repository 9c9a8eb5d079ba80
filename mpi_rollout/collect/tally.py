"""What a run has taken so far: env steps, and the seconds that ranks were in their envs and waited for each other."""

from dataclasses import dataclass, field

import numpy as np

from mpi_rollout.core.layout import Block
from mpi_rollout.exchange.exchanges import Exchanges


@dataclass
class Tally:
    """Counts over the rows that were collected so far.

    `slowest_s` adds up, exchange by exchange, the seconds of the slowest rank; `mean_s` those of the ranks on
    average.  In lockstep the difference is the imbalance: the time in which ranks wait for the slowest one.  Where no
    rank waits for another, the whole run counts as one step.
    """

    exchanges: Exchanges
    env_steps: int = 0
    step_s: np.ndarray = field(init=False)  # Of each rank.
    _lockstep_s: np.ndarray = field(init=False)
    _ended: int = 0

    def __post_init__(self):
        self.step_s = np.zeros(self.exchanges.division.num_ranks)
        self._lockstep_s = np.zeros(2)

    def add(self, block: Block, start: int, stop: int) -> None:
        """Count rows start to stop.  The row after an episode's end is no env step: see `collector`."""
        num_ended = block.num_ended[start:stop].sum(axis=1)
        last = int(num_ended[-1])
        num_resets = self._ended + int(num_ended.sum()) - last
        self.env_steps += (stop - start) * self.exchanges.division.num_envs - num_resets
        self._ended = last
        seconds = block.step_s[start:stop]
        np.add.at(self.step_s, self.exchanges.rank_of_slot, seconds.sum(axis=0))
        num_stepping = self.exchanges.num_stepping
        for slots in self.exchanges.slots:
            part = seconds[:, slots]
            self._lockstep_s += part.max(axis=1).sum(), part.sum() / num_stepping

    def resume(self, num_ended: int) -> None:
        """Count from a step on; in the one before it, the episodes of `num_ended` envs ended."""
        self._ended = num_ended

    @property
    def slowest_s(self) -> float:
        return float(self.step_s.max() if self.exchanges.division.first_ready else self._lockstep_s[0])

    @property
    def mean_s(self) -> float:
        return float(self._lockstep_s[1])
