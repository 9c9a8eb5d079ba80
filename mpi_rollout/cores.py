"""How many cores this process may use."""

import os
from pathlib import Path


def num_usable_cores() -> int:
    """By its affinity and by its container's quota."""
    allowed, quota = len(os.sched_getaffinity(0)), processor_quota()
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
