"""Which rank owns which envs, and which envs are exchanged together.  Values: no communication, no spaces."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mpi_rollout.errors import Field, UsageError, counted


class RankRange(NamedTuple):
    """Neighbouring ranks that own equally many envs: what one strided copy can move."""

    first_rank: int
    num_ranks: int
    first_env: int
    envs_per_rank: int

    @property
    def ranks(self) -> slice:
        return slice(self.first_rank, self.first_rank + self.num_ranks)

    @property
    def envs(self) -> slice:
        return slice(self.first_env, self.first_env + self.num_ranks * self.envs_per_rank)


@dataclass(frozen=True)
class Partition:
    """`num_envs` envs over `num_ranks` ranks in rank order, slices differing by one env at most.

    With `dedicated_root` rank 0 owns none.  `first_env` is the index of the first of these envs, where they are
    a part of more.

    Raises
    ------
    UsageError
        A rank that should step envs would get none.
    """

    num_envs: int
    num_ranks: int
    dedicated_root: bool = False
    first_env: int = 0

    def __post_init__(self):
        if self.num_workers < 1:
            raise UsageError(
                Field("dedicated_root"), " needs at least 2 ranks, got 1; start the program with mpirun -n 2 or more"
            )
        if self.num_envs < self.num_workers:
            raise UsageError(
                Field("num_envs"), f" must be at least the number of ranks that step envs, got "
                f"{counted(self.num_envs, 'env')} on {counted(self.num_workers, 'rank')}; use more envs or fewer ranks",
            )  # fmt: skip

    @property
    def envs(self) -> range:
        """The indices of all these envs."""
        return range(self.first_env, self.first_env + self.num_envs)

    @property
    def num_workers(self) -> int:
        """Ranks that step envs."""
        return self.num_ranks - self.dedicated_root

    @property
    def capacity(self) -> int:
        """Envs of the fullest rank."""
        return -(-self.num_envs // self.num_workers)

    @property
    def ranges(self) -> tuple[RankRange, ...]:
        """The ranks with envs, grouped by how many: two groups at most, however many ranks."""
        small, num_large = divmod(self.num_envs, self.num_workers)
        first = int(self.dedicated_root)
        large = RankRange(first, num_large, self.first_env, small + 1)
        rest = RankRange(first + num_large, self.num_workers - num_large, large.envs.stop, small)
        return tuple(run for run in (large, rest) if run.num_ranks)

    def envs_of(self, rank: int) -> range:
        """The env indices of one rank."""
        for run in self.ranges:
            if rank in range(run.first_rank, run.first_rank + run.num_ranks):
                start = run.first_env + (rank - run.first_rank) * run.envs_per_rank
                return range(start, start + run.envs_per_rank)
        return range(0)

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each env, in order, its rank and its row there."""
        sizes = [len(self.envs_of(rank)) for rank in range(self.num_ranks)]
        return np.repeat(np.arange(self.num_ranks), sizes), np.concatenate([np.arange(size) for size in sizes])


@dataclass(frozen=True)
class Division:
    """How all envs of a job are divided into what is exchanged together.

    One part over all ranks is lockstep.  `num_groups` parts of neighbouring envs, each over all ranks, let the ranks
    step one while the root is busy with another.  With `first_ready` each rank that steps envs is a part of its own.

    Raises
    ------
    UsageError
        A rank that should step envs would get none.
    """

    num_envs: int
    num_ranks: int
    dedicated_root: bool = False
    num_groups: int = 1
    first_ready: bool = False

    def __post_init__(self):
        whole = self.whole
        if self.num_envs < self.num_groups * whole.num_workers:
            raise UsageError(
                Field("num_groups"), f" {self.num_groups} needs at least {counted(self.num_groups, 'env')} for each "
                f"rank that steps envs, got {counted(self.num_envs, 'env')} on {counted(whole.num_workers, 'rank')}; "
                "use more envs or fewer groups",
            )  # fmt: skip

    @property
    def whole(self) -> Partition:
        """All envs over all ranks."""
        return Partition(self.num_envs, self.num_ranks, self.dedicated_root)

    @cached_property
    def parts(self) -> tuple[tuple[int, Partition], ...]:
        """In env order: the first rank, and the partition of some envs over it and those that follow."""
        if self.first_ready:
            return tuple(
                (rank, Partition(len(envs), 1, first_env=envs.start))
                for rank, envs in enumerate(map(self.whole.envs_of, range(self.num_ranks)))
                if envs
            )
        groups = map(Partition(self.num_envs, self.num_groups).envs_of, range(self.num_groups))
        return tuple((0, Partition(len(envs), self.num_ranks, self.dedicated_root, envs.start)) for envs in groups)

    @cached_property
    def stepping_ranks(self) -> tuple[int, ...]:
        """The ranks that own envs."""
        return tuple(range(int(self.dedicated_root), self.num_ranks))

    def envs_of(self, rank: int) -> tuple[range, ...]:
        """The env indices of one rank in each part that it belongs to."""
        found = [partition.envs_of(rank - first_rank) for first_rank, partition in self.parts]
        return tuple(envs for envs in found if envs)
