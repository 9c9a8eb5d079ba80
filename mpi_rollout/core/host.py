"""How many cores this process may use, and how much of them it gets.

The hardware threads of one core share its units, and count once.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ProcessorTime:
    """What a thread had of a core, in seconds: it ran, and it waited for its turn while others ran."""

    ran_s: float
    delayed_s: float

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.ran_s - before.ran_s, self.delayed_s - before.delayed_s)

    @property
    def share(self) -> float:
        """Of a core, while the thread had something to do: sleeping does not count."""
        wanted_s = self.ran_s + self.delayed_s
        return self.ran_s / wanted_s if wanted_s else 1.0


def processor_time(path: str = "/proc/thread-self/schedstat") -> ProcessorTime | None:
    """What the calling thread has had so far; None where the system does not say."""
    try:
        with open(path) as file:
            ran_ns, delayed_ns = file.read().split()[:2]
        return ProcessorTime(int(ran_ns) / 1e9, int(delayed_ns) / 1e9)
    except (OSError, ValueError):
        return None


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
