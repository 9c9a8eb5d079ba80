"""Memory that all ranks share, on one host: slots that lie there need no messages, see `exchange`.

It is the system's, and no window of MPI (`MPI.Win.Allocate_shared`).  It has no name, so that nothing stays in /dev/shm
when all ranks are killed, and a small /dev/shm, as containers have it, is no limit.  It lives as long as the arrays
that show it, while a window is unmapped under them.  And Open MPI 5.0.11 as a wheel prints an error for each window.
"""

import mmap
import os
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.exchange.world import ROOT
from mpi_rollout.process.console import say

if TYPE_CHECKING:
    from mpi4py import MPI


def shared_zeros(comm: "MPI.Intracomm", nbytes: int) -> np.ndarray | None:
    """Return bytes that all ranks share, or None on all if the system does not let all of them.  **Collective**."""
    file, place = _made(nbytes) if comm.rank == ROOT else (-1, ("", ""))
    path, link = comm.bcast(place, ROOT)
    memory = _mapped(path, link, nbytes)
    ranks = comm.gather((os.uname().nodename, memory is not None), ROOT)
    if file >= 0:
        os.close(file)
    is_shared = comm.bcast(all(can_share for _, can_share in ranks or ()), ROOT)
    if ranks is not None and not is_shared and len({host for host, _ in ranks}) == 1:
        _say_apart()
    return np.frombuffer(memory, np.uint8) if memory is not None and is_shared else None


def _made(nbytes: int) -> tuple[int, tuple[str, str]]:
    """Make a file in memory; return its number here, where other processes find it and by what they know it."""
    file = -1
    try:
        file = os.memfd_create(f"mpi_rollout-{os.urandom(8).hex()}")
        os.truncate(file, nbytes)
        return file, (f"/proc/{os.getpid()}/fd/{file}", os.readlink(f"/proc/self/fd/{file}"))
    except (OSError, AttributeError):  # There is not enough; or not such a function.
        return file, ("", "")


def _mapped(path: str, link: str, nbytes: int) -> mmap.mmap | None:
    """Map the root's file, if it is the one of this path: elsewhere, another process may have the root's number."""
    try:
        if os.readlink(path) != link:
            return None
        file = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(file, nbytes)
        finally:
            os.close(file)
    except OSError:
        return None


@cache
def _say_apart() -> None:
    say("mpi_rollout: ranks of this host cannot share memory; large observations take longer, as messages\n")
