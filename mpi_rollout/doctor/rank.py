"""What each rank tells of itself, before any message of a run."""

import os
import platform
from dataclasses import dataclass

from mpi_rollout.config import versions
from mpi_rollout.cores import physical_cores, processor_quota

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class RankFacts:
    """One rank.

    Parameters
    ----------
    cores
        Those that its host lets it run on: hardware threads.
    physical_cores
        What these belong to, see `cores`.
    quota
        Of processor time in cores, where a container has one.
    threads
        Values of `THREAD_VARIABLES` that are set.
    """

    rank: int
    host: str
    cores: frozenset[int]
    num_host_cores: int
    quota: float | None
    threads: dict[str, str]
    versions: dict[str, str]
    library: str
    thread_level: int
    physical_cores: frozenset[int]

    @classmethod
    def of(cls, rank: int, library: str, mpi4py_version: str, thread_level: int) -> "RankFacts":
        """This process."""
        return cls(
            rank, platform.node(), frozenset(os.sched_getaffinity(0)), os.cpu_count() or 1, processor_quota(),
            {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
            versions() | {"mpi4py": mpi4py_version}, library, thread_level, physical_cores(os.sched_getaffinity(0)),
        )  # fmt: skip
