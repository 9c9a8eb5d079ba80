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

    `root_envs` gives rank 0 that many instead, possibly none: it has other work too.

    Raises
    ------
    ValueError
        A rank that should step envs would get none.
    """

    num_envs: int
    num_ranks: int
    root_envs: int | None = None

    def __post_init__(self):
        if self.root_envs is not None and self.root_envs > self.num_envs:
            raise ValueError(
                f"--root-envs must be at most --num-envs, got --root-envs {self.root_envs} of {self.num_envs} envs"
            )
        if self.root_envs is not None and self.num_ranks == 1 and self.root_envs != self.num_envs:
            raise ValueError(
                f"--root-envs {self.root_envs} (--dedicated-root is 0) leaves envs to other ranks, got 1 rank; "
                "start the program with mpirun -n 2 or more"
            )
        others, left = self._others
        if (left < others) or (others == 0 and left > 0):
            raise ValueError(
                f"--num-envs must be at least the number of ranks that step envs, got {left} envs on {others} ranks; "
                "use more envs or fewer ranks"
            )

    @property
    def _others(self) -> tuple[int, int]:
        """How many ranks share evenly, and how many envs."""
        if self.root_envs is None:
            return self.num_ranks, self.num_envs
        return self.num_ranks - 1, self.num_envs - self.root_envs

    @property
    def capacity(self) -> int:
        """Envs of the fullest rank."""
        return max(run.envs_per_rank for run in self.runs)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The ranks with envs, grouped by how many: three groups at most, however many ranks."""
        others, left = self._others
        root_envs = self.root_envs or 0
        small, num_large = divmod(left, others) if others else (0, 0)
        first = self.num_ranks - others
        root = Run(0, 1, 0, root_envs)
        large = Run(first, num_large, root_envs, small + 1)
        rest = Run(first + num_large, others - num_large, large.envs.stop, small)
        return tuple(run for run in (root, large, rest) if run.num_ranks and run.envs_per_rank)

    def envs_of(self, rank: int) -> range:
        """The env indices of one rank."""
        for run in self.runs:
            if rank in range(run.first_rank, run.first_rank + run.num_ranks):
                start = run.first_env + (rank - run.first_rank) * run.envs_per_rank
                return range(start, start + run.envs_per_rank)
        return range(0)
