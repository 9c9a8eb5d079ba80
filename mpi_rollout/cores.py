"""How many cores this process may use.  The hardware threads of one core share its units, and count once."""

import os
from collections.abc import Iterable
from pathlib import Path


def physical_cores(threads: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> frozenset[int]:
    """The cores that hardware threads belong to, each by the number of its first thread.

    The system counts hardware threads as processors; where it does not tell which belong together, each is a core.
    """
    return frozenset(_first_sibling(thread, root) for thread in threads)


def _first_sibling(thread: int, root: Path) -> int:
    try:
        siblings = (root / f"cpu{thread}" / "topology" / "thread_siblings_list").read_text()  # 0,64 or 0-1
        return int(siblings.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return thread


def num_cores_of_host() -> int:
    """All cores of this machine, whosoever they are."""
    return max(1, len(physical_cores(range(os.cpu_count() or 1))))


def num_usable_cores() -> int:
    """By its affinity and by its container's quota."""
    allowed, quota = len(physical_cores(os.sched_getaffinity(0))), processor_quota()
    return max(1, min(allowed, int(quota))) if quota else allowed


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
