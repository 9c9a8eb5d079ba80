"""What each rank tells of itself, before any message of a run."""

import os
import platform
from dataclasses import dataclass
from time import monotonic

from mpi_rollout.config import versions
from mpi_rollout.core.host import physical_cores, processor_quota, processor_time

BUSY_S = 0.1  # Some tens of the turns that systems give to programs that share a core.
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
    core_share
        Of a core, what a busy loop got; None where the system does not say.
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
    core_share: float | None = None

    @classmethod
    def of(cls, rank: int, library: str, mpi4py_version: str, thread_level: int) -> "RankFacts":
        """This process."""
        return cls(
            rank, platform.node(), frozenset(os.sched_getaffinity(0)), os.cpu_count() or 1, processor_quota(),
            {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
            versions() | {"mpi4py": mpi4py_version}, library, thread_level, physical_cores(os.sched_getaffinity(0)),
            measure_core_share(),
        )  # fmt: skip


def measure_core_share() -> float | None:
    """Keep busy for a moment; return how much of a core that was given."""
    before, end = processor_time(), monotonic() + BUSY_S
    while monotonic() < end:
        pass
    now = processor_time()
    return None if before is None or now is None else now.since(before).share
