"""What this host gives to a process: cores, processor time, and memory.

Hardware threads of one core share its units, and count as one core.  Envs that need more memory than there is are
refused before they are made.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mpi_rollout.errors import Option, UsageError

CGROUPS = Path("/sys/fs/cgroup")
CGROUP_FILES = (  # Limit and use, of version 2 and 1.
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
THREAD_VARIABLES = "OMP_NUM_THREADS", "NPROC"  # XLA's thread pool on CPUs has as many threads as the second says.
LEAST_ENV_NBYTES = 1000  # An object and its random generator; Gymnasium's smallest envs have five times that.
FEW = 64  # Envs from which the memory of the others is estimated.
ANY_SIZE = "MPI_ROLLOUT_ANY_SIZE"
MOST_COUNTED = 2**31 - 1  # Bytes, in an int of MPI.
ANYWAY = f"or {ANY_SIZE}=1 to begin all the same"

T = TypeVar("T")


def physical_cores(threads: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> frozenset[int]:
    """Return the cores of some hardware threads, each as the number of its first thread.

    The system counts hardware threads as processors.  Where it does not say which belong together, each is a core.
    """
    return frozenset(_first_sibling(thread, root) for thread in threads)


def _first_sibling(thread: int, root: Path) -> int:
    try:
        siblings = (root / f"cpu{thread}" / "topology" / "thread_siblings_list").read_text()  # 0,64 or 0-1
        return int(siblings.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return thread


def num_cores_of_host() -> int:
    """Return the number of all cores of this machine."""
    return max(1, len(physical_cores(range(os.cpu_count() or 1))))


def num_usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and by its container's quota."""
    num_cores, quota = len(physical_cores(os.sched_getaffinity(0))), processor_quota()
    return max(1, min(num_cores, int(quota))) if quota else num_cores


def processor_quota(root: Path = CGROUPS) -> float | None:
    """Return the processor time that this container may use, in cores; None without a limit."""
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


@contextmanager
def library_threads(number: int, is_asked_for: bool) -> Iterator[None]:
    """Limit the threads of libraries imported in this context: those with OpenMP, such as torch, and XLA of JAX.

    What an option asks for counts more than what is in the environment.
    """
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ |= {name: str(number) for name, value in before.items() if value is None or is_asked_for}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True)
class ProcessorTime:
    """The seconds that a thread ran, and those that it waited for its turn while others ran."""

    ran_s: float
    delayed_s: float

    def since(self, before: "ProcessorTime") -> "ProcessorTime":
        return ProcessorTime(self.ran_s - before.ran_s, self.delayed_s - before.delayed_s)

    @property
    def share(self) -> float:
        """The share of a core that the thread had while it had something to do; sleeping does not count."""
        wanted_s = self.ran_s + self.delayed_s
        return self.ran_s / wanted_s if wanted_s else 1.0


def processor_time(path: str = "/proc/thread-self/schedstat") -> ProcessorTime | None:
    """Return the processor time of the calling thread so far; None where the system does not say."""
    try:
        with open(path) as file:
            ran_ns, delayed_ns = file.read().split()[:2]
        return ProcessorTime(int(ran_ns) / 1e9, int(delayed_ns) / 1e9)
    except (OSError, ValueError):
        return None


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes for people: 1,234.5 MB and 7.1 GB."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"


def free_memory(meminfo: str = "/proc/meminfo", root: Path = CGROUPS) -> int:
    """Return the bytes that processes can have before the host swaps, or their container is at its limit."""
    available = re.search(r"MemAvailable:\s*(\d+) kB", Path(meminfo).read_text())
    free = int(available.group(1)) * 1024 if available else 0
    for limit, used in CGROUP_FILES:
        try:
            used_nbytes = int((root / used).read_text()) - _cached_nbytes((root / used).with_name("memory.stat"))
            free = min(free, int((root / limit).read_text()) - used_nbytes)
        except (OSError, ValueError):  # There is no such file, or it says "max".
            continue
    return max(free, 0)


def _cached_nbytes(stat: Path) -> int:
    """Return the bytes of files that the system gives up before a container is at its limit."""
    try:
        sizes = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return sum(int(sizes.get(f"total_{name}", sizes.get(name, 0))) for name in ("inactive_file", "active_file"))


def is_any_size() -> bool:
    """Tell whether the user wants the run to begin however much it takes."""
    return os.environ.get(ANY_SIZE, "") not in ("", "0")


def check_num_envs(num_envs: int, num_ranks: int) -> None:
    """Refuse more envs than this host's memory holds, whatever they are, before anything is made for each of them."""
    least = num_envs * LEAST_ENV_NBYTES // num_ranks
    _check_memory(least, f"{num_envs:,} envs take at least {format_bytes(least)} of memory on each rank, and this host")


def _check_memory(nbytes: float, whose: str, way_out: str = "use fewer envs, more hosts,") -> None:
    """Refuse what this host has no memory for; UsageError."""
    free = free_memory()
    if nbytes > free and not is_any_size():
        raise UsageError(Option("num_envs"), f": {whose} has {format_bytes(free)} free; {way_out} {ANYWAY}")


def make_with_room(makers: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Make envs, and estimate from the first few how much memory the others take; UsageError if it is not there."""
    before = 0
    for count, make in enumerate(makers):
        if count == 1:  # The first one includes its modules.
            before = resident_nbytes()
        elif count == FEW + 1:
            _check_rest((resident_nbytes() - before) / FEW, len(makers), len(makers) - count)
        yield make()


def _check_rest(env_nbytes: float, num_envs: int, num_missing: int) -> None:
    needed = env_nbytes * num_missing
    needs = f"an env takes {format_bytes(env_nbytes)} of memory here, the {num_envs:,} of this rank"
    _check_memory(needed, f"{needs} {format_bytes(needed)} more, and this host")


def resident_nbytes() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_blocks(nbytes: int) -> None:
    """Refuse buffers for the steps of all envs that the memory of this host, the root's, cannot hold."""
    needs = f"rank 0 needs {format_bytes(nbytes)} of memory for the steps of all envs, and its host"
    _check_memory(nbytes, needs, "use fewer envs,")


def check_length(name: str, length: int, row_nbytes: int, num_ranks: int, order_nbytes: int) -> None:
    """Refuse fragments, asked for by this `name`, that the root or MPI's counts cannot hold; say how long they may be.

    A step has `row_nbytes` in the slot of a rank, and the actions of all envs have `order_nbytes`.
    """
    free, step_nbytes = free_memory(), num_ranks * row_nbytes + order_nbytes
    most = max(1, min(free // step_nbytes, MOST_COUNTED // max(num_ranks * row_nbytes, order_nbytes)))
    if length > most:
        needs = f"rank 0 needs {format_bytes(length * step_nbytes)} of memory for {length:,} steps of all ranks"
        raise UsageError(
            f"{name}: {needs}, its host has {format_bytes(free)} free, and MPI counts up to "
            f"{format_bytes(MOST_COUNTED)}; use at most {most:,}"
        )


def share_of_cores(num_local: int) -> int:
    """Return the number of cores for this rank's threads, at least 1; `num_local` ranks are on its host.

    Those that its launcher has bound it to are its own; else the ranks of the host share what there is.
    """
    own = os.sched_getaffinity(0)
    try:
        is_bound = own != os.sched_getaffinity(os.getppid())
    except OSError:  # The parent is in another namespace, or has left.
        is_bound = False
    return max(1, len(own) if is_bound else len(own) // num_local)
