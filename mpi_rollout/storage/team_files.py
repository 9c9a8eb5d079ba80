"""Several shards that one team writes, as one file to its writer: each has its envs' part of a block.

A shard may be ahead of the others, whose start was stopped earlier: it drops the steps that it has.  They are the same
steps again.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpi_rollout.core.layout import Block
from mpi_rollout.errors import Option
from mpi_rollout.storage.run_file import RunFile
from mpi_rollout.storage.schema import Ending
from mpi_rollout.storage.values import merged_wrong


class Shard(NamedTuple):
    """A shard that is not complete: its envs as places in the team's blocks, and the steps that it had at the start."""

    envs: range
    file: RunFile
    num_steps: int


class TeamFiles:
    """The files of a team's shards, with what a writer uses of a `run_file.RunFile`.

    `part` is the name of the shard at work, whose error it is; before and afterwards that of the unfinished manifest.
    """

    is_recording = False

    def __init__(self, part: str, shards: Sequence[Shard], num_steps: int):
        self.part, self._manifest, self._shards, self._first_step = part, part, shards, num_steps
        self.values = ShardValues(shards)

    def _files(self) -> Iterator[RunFile]:
        for shard in self._shards:
            self.part = shard.file.part
            yield shard.file
        self.part = self._manifest

    @property
    def num_committed(self) -> int:
        """Steps that all shards have."""
        return min([shard.file.num_committed for shard in self._shards], default=self._first_step)

    @property
    def worst_commit_s(self) -> float:
        return sum(shard.file.worst_commit_s for shard in self._shards)

    @property
    def ended(self) -> np.ndarray:
        return sum((shard.file.ended for shard in self._shards), np.zeros(3))

    def begin(self) -> None:
        for file in self._files():
            file.begin()

    def append(self, block: Block, num_rows: int) -> None:
        for shard, file in zip(self._shards, self._files(), strict=True):
            if block.start + num_rows > shard.num_steps:
                file.append(part_of(block, shard.envs), num_rows)

    def note(self, table: str, rows: np.ndarray) -> None:
        """Give faults to the shards of their envs, and intervals, which are the team's, to the first shard."""
        if table != "faults":
            return self._shards[0].file.note(table, rows) if self._shards else None
        for envs, file, num_steps in self._shards:
            own = rows[np.isin(rows["env_index"], envs) & (rows["step"] >= num_steps)]
            own["env_index"] -= envs.start
            if len(own):
                file.note(table, own)

    def finish(self, ending: Ending) -> str:
        for file in self._files():
            file.finish(ending)
        return self.part

    def discard(self) -> None:
        for file in self._files():
            file.discard()

    def release(self) -> None:
        for shard in self._shards:
            shard.file.release()


class ShardValues:
    """The counts of wrong values of some shards, as a `values.ValueChecks` has them of one file."""

    def __init__(self, shards: Sequence[Shard]):
        self._shards = shards

    def say_warnings(self, spell: Callable[[Option], str]) -> None:
        for shard in self._shards:
            shard.file.values.say_warnings(spell)

    @property
    def wrong(self) -> list[dict[str, str | int]]:
        return merged_wrong([(shard.envs.start, shard.file.values.wrong) for shard in self._shards])


def part_of(block: Block, envs: range) -> Block:
    """Return the part of a block that some envs have, as views."""
    part, places = copy.copy(block), slice(envs.start, envs.stop)
    part.named = {name: array[:, places] for name, array in block.named.items()}
    part.take_outcomes([array[:, places] for array in block.outcomes])
    return part
