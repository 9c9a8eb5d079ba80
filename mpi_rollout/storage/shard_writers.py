"""Several shards that one team writes, as one file to its collector: each has a writer, for its envs' part of a block.

A shard may be ahead of the others, whose start was stopped earlier: it drops the steps that it has.  They are the same
steps again.
"""

import copy
import queue
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mpi_rollout.core.layout import Block
from mpi_rollout.errors import Option
from mpi_rollout.storage.run_file import Ending
from mpi_rollout.storage.values import merged_wrong
from mpi_rollout.storage.writer import Writer, wait_for


@dataclass(frozen=True)
class Shard:
    """A shard of a team.

    `envs` are places in the team's blocks.  The `writer` is None where the shard is complete.  `num_steps` are those
    that it had at the start.
    """

    envs: range
    writer: Writer | None
    num_steps: int


class ShardWriters:
    """The writers of a team's shards, with the methods of a `writer.Writer`.

    `part` is the unfinished manifest; `num_steps` is from where on the team collects.
    """

    def __init__(self, part: str, shards: Sequence[Shard], blocks: Sequence[Block], num_steps: int):
        self.part, self.num_rows, self.values = part, blocks[0].num_rows, ShardValues(shards)
        self._shards, self._first_step, self.num_waits = shards, num_steps, 0
        self._parts = {block: [part_of(block, shard.envs) for shard in shards] for block in blocks}
        self._block_of = {part: block for block, parts in self._parts.items() for part in parts}
        self._free: queue.LifoQueue[Block] = queue.LifoQueue()
        self._given_back: Counter[Block] = Counter()
        for block in blocks:
            self._free.put(block)
        for writer in self._writers:
            writer.on_free = self._give_back

    @property
    def _writers(self) -> list[Writer]:
        return [shard.writer for shard in self._shards if shard.writer is not None]

    @property
    def num_committed(self) -> int:
        """Steps that all shards have."""
        return min([writer.num_committed for writer in self._writers], default=self._first_step)

    @property
    def worst_commit_s(self) -> float:
        return sum(writer.worst_commit_s for writer in self._writers)

    @property
    def ended(self) -> np.ndarray:
        return sum((writer.ended for writer in self._writers), np.zeros(3))

    def check(self) -> None:
        for writer in self._writers:
            writer.check()

    def acquire(self) -> Block:
        self.num_waits += self._free.empty()
        return wait_for(self._free, self.check)

    def submit(self, block: Block, num_rows: int) -> None:
        for shard, part in zip(self._shards, self._parts[block], strict=True):
            part.start = block.start
            if shard.writer is not None and block.start + num_rows > shard.num_steps:
                shard.writer.submit(part, num_rows)
            elif num_rows == block.num_rows:
                self._give_back(part)

    def _give_back(self, part: Block) -> None:
        """Note that a shard has written its part of a full block.  Called by the writers' threads, too."""
        block = self._block_of[part]
        self._given_back[block] += 1
        if self._given_back[block] == len(self._shards):
            self._given_back[block] = 0
            self._free.put(block)

    def add_interval(self, time_s: float, env_steps: int, env_steps_per_s: float) -> None:
        for writer in self._writers:
            writer.add_interval(time_s, env_steps, env_steps_per_s)

    def add_fault(self, env_index: int, step: int, message: str) -> None:
        for shard in self._shards:
            if env_index in shard.envs and shard.writer is not None and step >= shard.num_steps:
                shard.writer.add_fault(env_index - shard.envs.start, step, message)

    def drain(self) -> None:
        for writer in self._writers:
            writer.drain()

    def finish(self, ending: Ending) -> str:
        for writer in self._writers:
            writer.finish(ending)
        return self.part

    def discard(self) -> None:
        for writer in self._writers:
            writer.discard()

    def release(self) -> None:
        for writer in self._writers:
            writer.release()


class ShardValues:
    """The counts of wrong values of some shards, as a `values.ValueChecks` has them of one file."""

    def __init__(self, shards: Sequence[Shard]):
        self._of = [(shard.envs.start, shard.writer.values) for shard in shards if shard.writer is not None]

    def say_warnings(self, spell: Callable[[Option], str]) -> None:
        for _, values in self._of:
            values.say_warnings(spell)

    @property
    def wrong(self) -> list[dict[str, str | int]]:
        return merged_wrong([(first_env, values.wrong) for first_env, values in self._of])


def part_of(block: Block, envs: range) -> Block:
    """Return the part of a block that some envs have, as views."""
    part, places = copy.copy(block), slice(envs.start, envs.stop)
    part.named = {name: array[:, places] for name, array in block.named.items()}
    part.rewards, part.terminations, part.truncations = (array[:, places] for array in block.results)
    return part
