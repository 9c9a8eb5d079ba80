"""How a rank waits for messages: at the cost of a core, or asleep.

MPI's own waits spin.  Nothing is quicker where each rank has a core to itself, and where two or three share one they
are still quicker: both MPIs let others run then.  Of 64 ranks on two cores those who wait take MPICH's cores from those
who work (results/measured/README.md, "How ranks wait").  So where a host has many more ranks than cores, which is for
envs that wait themselves, ranks look, sleep, and look again.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import Any

from mpi_rollout.cores import processor_quota
from mpi_rollout.mpi import ROOT

MANY = 4  # Ranks for each core: with fewer, sleeping was never the quicker.
NUM_REMEMBERED = 4
YIELDING_S = 1e-3  # Of shorter waits each sleep would be a large part.
SHORTEST_S = 5e-5
FIRST_SHARE = 0.5  # Of the shortest of the last waits: so the first look comes before what is waited for.
NEXT_SHARE = 0.03  # Of what has been waited: by how much a look may come too late.
LONGEST_S = 0.02


def has_many_ranks_per_core(comm: Any) -> bool:
    """Whether some host has `MANY` times as many ranks as cores that they may use, or more.  **Collective.**"""
    found = comm.gather((os.uname().nodename, os.sched_getaffinity(0), processor_quota()), ROOT)
    return comm.bcast(is_crowded(found) if comm.rank == ROOT else None, ROOT)


def is_crowded(ranks: Sequence[tuple[str, set[int], float | None]]) -> bool:
    """The same, of each rank's host, cores that it may run on, and cores' worth of time that its container may use."""
    hosts: dict[str, list[tuple[set[int], float | None]]] = {}
    for host, cores, quota in ranks:
        hosts.setdefault(host, []).append((cores, quota))
    return any(
        len(there) >= MANY * min(len(set().union(*(cores for cores, _ in there))), there[0][1] or math.inf)
        for there in hosts.values()
    )


class Spinning:
    """MPI's own waits."""

    def one(self, request: Any) -> None:
        request.Wait()

    def all(self, requests: Sequence[Any]) -> None:
        requests[0].Waitall(requests)

    def any(self, requests: Sequence[Any]) -> int:
        """The index of one that is over."""
        return requests[0].Waitany(requests)

    def some(self, requests: Sequence[Any]) -> list[int]:
        """The indices of those that are over, one at least of those under way."""
        return requests[0].Waitsome(requests)


class Sleeping:
    """Waits that leave the core to others: a look costs some microseconds, so there are to be few of them.

    What is waited for comes about as late as the last times.  So the first sleep is half of that, as the shortest of
    the last waits had it, for one that was long (a trainer's update) says nothing of the next.  Then looks come at
    distances that grow with what has been waited.

    Longer sleeps do not save time: of 64 ranks on two cores all waits get longer by what each looks too late, and with
    these the sleeps.  Shares of 0.9 and 0.1 gave 0.6 of the rate of these (2026-11-21, envs that sleep 5 ms).
    """

    def __init__(self):
        self._waited_s = deque([0.0], NUM_REMEMBERED)

    def one(self, request: Any) -> None:
        self._until(request.Test)

    def all(self, requests: Sequence[Any]) -> None:
        def look() -> bool:
            while found := requests[0].Testsome(requests):  # MPICH takes in one message a look, however many there are.
                pass
            return found is None

        self._until(look)

    def any(self, requests: Sequence[Any]) -> int:
        found = -1

        def look() -> bool:
            nonlocal found
            found, is_over = requests[0].Testany(requests)
            return is_over

        self._until(look)
        return found

    def some(self, requests: Sequence[Any]) -> list[int]:
        found: list[int] | None = []

        def look() -> bool:
            nonlocal found
            found = requests[0].Testsome(requests)
            return found is None or len(found) > 0

        self._until(look)
        return found

    def _until(self, look: Callable[[], bool]) -> None:
        start = now = perf_counter()
        pause_s, missed_s = min(FIRST_SHARE * min(self._waited_s), LONGEST_S), 0.0
        while not look():
            missed_s = now - start
            if pause_s < YIELDING_S and missed_s < YIELDING_S:
                os.sched_yield()
            else:
                sleep(max(pause_s, SHORTEST_S))
            now = perf_counter()
            pause_s = min(NEXT_SHARE * (now - start), LONGEST_S)
        # It came between the last two looks.  If all there was is a first sleep, that may have been far too long.
        self._waited_s.append(max(missed_s, (now - start) / 2))
