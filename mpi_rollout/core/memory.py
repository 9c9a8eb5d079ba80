"""What memory there is on this host, and what envs take of it: more is refused before it is asked for."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from mpi_rollout.errors import Field, UsageError

LEAST_ENV_NBYTES = 1000  # Of an object and its random generator; the smallest of Gymnasium's envs have five times that.
FEW = 64  # Envs after which the memory of all others can be told.
ANY_SIZE = "MPI_ROLLOUT_ANY_SIZE"
ANYWAY = f"or {ANY_SIZE}=1 to begin all the same"

CGROUP_FILES = (  # Limit and use, of version 2 and 1.
    ("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)  # fmt: skip

T = TypeVar("T")


def shown(nbytes: float) -> str:
    """A number of bytes for people: 1,234.5 MB and 7.1 GB."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:,.1f} MB"


def free_memory(meminfo: str = "/proc/meminfo", root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that processes of this host can have before the system swaps, or their container is at its limit."""
    found = re.search(r"MemAvailable:\s*(\d+) kB", Path(meminfo).read_text())
    free = int(found.group(1)) * 1024 if found else 0
    for limit, used in CGROUP_FILES:
        try:
            used_nbytes = int((root / used).read_text()) - cached_nbytes((root / used).with_name("memory.stat"))
            free = min(free, int((root / limit).read_text()) - used_nbytes)
        except (OSError, ValueError):  # There is no such file, or it says "max".
            continue
    return max(free, 0)


def cached_nbytes(stat: Path) -> int:
    """Bytes of files that the system gives up before a container is at its limit."""
    try:
        found = dict(line.split() for line in stat.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return sum(int(found.get(f"total_{name}", found.get(name, 0))) for name in ("inactive_file", "active_file"))


def is_any_size() -> bool:
    """The user has said that the run is to begin whatever it takes."""
    return os.environ.get(ANY_SIZE, "") not in ("", "0")


def check_num_envs(num_envs: int, num_ranks: int) -> None:
    """Refuse more envs than any machine like this one can have, before anything is made for each of them.

    Raises
    ------
    UsageError
        The memory of this host is too small for a rank's share of them, whatever they are.
    """
    least, free = num_envs * LEAST_ENV_NBYTES // num_ranks, free_memory()
    if least > free and not is_any_size():
        raise UsageError(
            Field("num_envs"), f": {num_envs:,} envs take at least {shown(least)} of memory on each rank, and this "
            f"host has {shown(free)} free; use fewer envs, more hosts, {ANYWAY}"
        )  # fmt: skip


def made_with_room(makers: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Make envs, and tell from the first few what the others will take.

    Raises
    ------
    UsageError
        The memory of this host is too small for them.
    """
    before = 0
    for count, make in enumerate(makers):
        if count == 1:  # The first one has its modules with it.
            before = resident_nbytes()
        elif count == FEW + 1:
            each = (resident_nbytes() - before) / FEW
            needed, free = each * (len(makers) - count), free_memory()
            if needed > free and not is_any_size():
                raise UsageError(
                    Field("num_envs"), f": an env takes {shown(each)} of memory here, the {len(makers):,} of this rank "
                    f"{shown(needed)} more, and this host has {shown(free)} free; use fewer envs, more hosts, {ANYWAY}"
                )  # fmt: skip
        yield make()


def resident_nbytes() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def check_blocks(nbytes: int) -> None:
    """Refuse buffers for the steps of all envs that the memory of this host, the root's, cannot hold.

    Raises
    ------
    UsageError
        It cannot.
    """
    free = free_memory()
    if nbytes > free and not is_any_size():
        raise UsageError(
            Field("num_envs"), f": rank 0 needs {shown(nbytes)} of memory for the steps of all envs, and its host has "
            f"{shown(free)} free; use fewer envs, {ANYWAY}"
        )  # fmt: skip
