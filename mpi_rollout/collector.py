"""The loop: observations to the policy, its actions to the envs, what follows into blocks.

Index: row t of a block has the observation that the policy saw, the action that it chose and what followed; the
next observation goes to row t + 1, which may be row 0 of the next block.  After an episode's end comes one row
that is no transition: its action is ignored, its reward is 0, it leads to the next episode's first observation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np

from mpi_rollout.exchange import Destination
from mpi_rollout.layout import Block
from mpi_rollout.policy import Policy, RandomPolicy
from mpi_rollout.vector_env import MPIVectorEnv


class Sink(Protocol):
    """Where full blocks go: `storage.Writer`, or `Discard`."""

    def acquire(self) -> Block:
        """A block to fill; waits for one."""

    def submit(self, block: Block, num_rows: int) -> None:
        """Take the first `num_rows` rows and the observations after them, where the block has those.

        A full block comes back by `acquire`; another goes on growing and is submitted again.
        """


class Discard:
    """Where blocks go when only the throughput counts."""

    def __init__(self, blocks: list[Block]):
        self._blocks, self._turn = blocks, 0

    def acquire(self) -> Block:
        self._turn += 1
        return self._blocks[self._turn % len(self._blocks)]

    def submit(self, block: Block, num_rows: int) -> None:
        pass


@dataclass
class Tally:
    """Counts over the rows that were collected so far.

    `slowest_s` adds up, step by step, the seconds of the slowest rank; `mean_s` those of the ranks on average.  All
    of lockstep's waiting for imbalance is the difference.
    """

    num_ranks: int
    env_steps: int = 0
    slowest_s: float = 0.0
    mean_s: float = 0.0
    step_s: np.ndarray = field(init=False)
    _ended: int = 0

    def __post_init__(self):
        self.step_s = np.zeros(self.num_ranks)

    def add(self, block: Block, start: int, stop: int, is_stepping: np.ndarray) -> None:
        """Count rows start to stop.  Rows after an episode's end are no env steps: see the module."""
        ends = np.count_nonzero(block.terminations[start:stop] | block.truncations[start:stop], axis=1)
        num_ends = int(ends.sum())
        last = int(ends[-1])
        self.env_steps += (stop - start) * block.rewards.shape[1] - (self._ended + num_ends - last)
        self._ended = last
        seconds = block.step_s[start:stop]
        self.step_s += seconds.sum(axis=0)
        self.slowest_s += float(seconds.max(axis=1).sum())
        self.mean_s += float(seconds[:, is_stepping].mean(axis=1).sum())


class Collector:
    """Collect steps of all envs into blocks.

    Parameters
    ----------
    on_look
        Called with this collector about every `look_every_s` seconds between two steps, and at the end of `advance`.
    commit_every_s
        A block that fills slowly is handed to the sink now and then as far as it is.
    """

    def __init__(
        self,
        envs: MPIVectorEnv,
        policy: Policy,
        sink: Sink,
        on_look: Callable[["Collector"], None],
        look_every_s: float = 0.5,
        commit_every_s: float = 10.0,
    ):
        self.envs, self.policy, self.sink, self.clock = envs, policy, sink, envs.clock
        self.tally = Tally(envs.exchange.partition.num_ranks)
        self.num_steps = 0
        self._on_look, self._look_every_s, self._commit_every_s = on_look, look_every_s, commit_every_s
        self._trusted = isinstance(policy, RandomPolicy)
        partition = envs.exchange.partition
        self._is_stepping = np.array([len(partition.envs_of(rank)) > 0 for rank in range(partition.num_ranks)])
        self._destinations: dict[int, Destination] = {}
        self._row = self._counted = 0
        self._look_at = self._commit_at = 0.0

    def start(self) -> None:
        """Reset all envs; the first observations go to row 0."""
        self._block, self._destination = self._fresh_block(0)
        self.envs.reset(to=(self._destination, 0))
        self._commit_at = perf_counter() + self._commit_every_s
        self.clock.restart()

    def _fresh_block(self, start: int) -> tuple[Block, Destination]:
        block = self.sink.acquire()
        block.start = start
        if id(block) not in self._destinations:
            self._destinations[id(block)] = self.envs.destination(block)
        self.clock.lap("write")
        return block, self._destinations[id(block)]

    def advance(self, num_steps: int) -> None:
        """Take steps.  After an error, all steps before it are still there for `hand_over`."""
        stop = self.num_steps + num_steps
        while self.num_steps < stop:
            self._take_step()
            if self.clock.now >= self._look_at or self.envs.stop_signal:
                self.look()
        self.look()

    def _take_step(self) -> None:
        block, row, clock = self._block, self._row, self.clock
        actions = self.policy(block.observations_of(row))
        clock.lap("policy")
        is_last = row + 1 == block.num_rows
        # Before the order is out: once it is, its slots must be awaited, whatever the writer says.
        following = self._fresh_block(self.num_steps + 1) if is_last else (block, self._destination)
        self.envs.send(actions, self._trusted)
        for array, sent in zip(block.action_arrays, self.envs.exchange.action_arrays, strict=True):
            array[row] = sent
        next_row = 0 if is_last else row + 1
        self.envs.recv_into((following[1], next_row), (self._destination, row))
        self.num_steps += 1
        self._row = next_row
        if is_last:
            self._turn_over(*following)

    def _turn_over(self, following: Block, destination: Destination) -> None:
        """Hand in the full block; what its last step led to is the first observation of the next one."""
        block = self._block
        self._count(block.num_rows)
        self._block, self._destination, self._counted = following, destination, 0
        self.sink.submit(block, block.num_rows)
        self.clock.lap("write")

    def _count(self, stop: int) -> None:
        """Make columns of the rows since the last count, and count them."""
        if stop > self._counted:
            self._destination.unpack(self._counted, stop)
            self.tally.add(self._block, self._counted, stop, self._is_stepping)
            self._counted = stop

    def look(self) -> None:
        """Count what came since the last look; hand over a block that is slow to fill; tell who wants to know."""
        self._count(self._row)
        if self.clock.now >= self._commit_at:
            self.hand_over()
        self._on_look(self)
        self.clock.lap("other")
        self._look_at = self.clock.now + self._look_every_s

    def hand_over(self) -> None:
        """Give the sink all steps so far."""
        self._count(self._row)
        self.sink.submit(self._block, self._row)
        self._commit_at = perf_counter() + self._commit_every_s
