"""Which rank owns which envs.  A value: no communication, no spaces."""

from dataclasses import dataclass
from typing import NamedTuple


class Run(NamedTuple):
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

    With `dedicated_root` rank 0 owns none.

    Raises
    ------
    ValueError
        A rank that should step envs would get none.
    """

    num_envs: int
    num_ranks: int
    dedicated_root: bool = False

    def __post_init__(self):
        if self.num_workers < 1:
            raise ValueError(
                "--dedicated-root needs at least 2 ranks, got 1; start the program with mpirun -n 2 or more"
            )
        if self.num_envs < self.num_workers:
            raise ValueError(
                f"--num-envs must be at least the number of ranks that step envs, got {self.num_envs} envs on "
                f"{self.num_workers} ranks; use more envs or fewer ranks"
            )

    @property
    def num_workers(self) -> int:
        """Ranks that step envs."""
        return self.num_ranks - self.dedicated_root

    @property
    def capacity(self) -> int:
        """Envs of the fullest rank."""
        return -(-self.num_envs // self.num_workers)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The ranks with envs, grouped by how many: two groups at most, however many ranks."""
        small, num_large = divmod(self.num_envs, self.num_workers)
        first = int(self.dedicated_root)
        large = Run(first, num_large, 0, small + 1)
        rest = Run(first + num_large, self.num_workers - num_large, large.envs.stop, small)
        return tuple(run for run in (large, rest) if run.num_ranks)

    def envs_of(self, rank: int) -> range:
        """The env indices of one rank."""
        for run in self.runs:
            if rank in range(run.first_rank, run.first_rank + run.num_ranks):
                start = run.first_env + (rank - run.first_rank) * run.envs_per_rank
                return range(start, start + run.envs_per_rank)
        return range(0)
