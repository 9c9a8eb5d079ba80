"""What each rank tells of itself, before any message of a run."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from mpi_rollout.config import versions

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class RankFacts:
    """One rank.

    Parameters
    ----------
    cores
        Those that its host lets it run on.
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

    @classmethod
    def of(cls, rank: int, library: str, mpi4py_version: str, thread_level: int) -> "RankFacts":
        """This process."""
        return cls(
            rank, platform.node(), frozenset(os.sched_getaffinity(0)), os.cpu_count() or 1, processor_quota(),
            {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
            versions() | {"mpi4py": mpi4py_version}, library, thread_level,
        )  # fmt: skip


def processor_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of processor time that this container may use; None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        return float(quota) / float(period) if float(quota) > 0 else None
    except ValueError:
        return None  # cgroup v2 says "max".
