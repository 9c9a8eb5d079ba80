"""How a rank waits for messages: it spins on its core, or it sleeps.

MPI's own waits spin.  Nothing is quicker where each rank has a core to itself.  Where two or three ranks share a core
they are still quicker, because both MPIs let others run then.  Of 64 ranks on two cores under MPICH, those that wait
take the cores from those that work (results/measured/README.md, "How should ranks wait?").  So where a host has many
more ranks than cores, which is useful for envs that wait themselves, ranks look, sleep, and look again.

Where other programs run on the ranks' cores, a rank that spins uses up its turn, and has no turn when there is work.
Sleeping is three times as quick then.  Nobody knows at the start whether other programs run, and it changes.  So ranks
that have a core each check a few times a second how long they waited for their turn.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING, TypeVar

from mpi_rollout.exchange.world import ROOT
from mpi_rollout.process.console import say
from mpi_rollout.process.host import processor_quota, processor_time

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

MANY = 4  # Ranks for each core: with fewer, sleeping was never quicker.
CROWDED = "ranks share each core, which is for envs that wait themselves"
NUM_REMEMBERED = 4
YIELDING_S = 1e-3  # A sleep would be a large part of shorter waits.
SHORTEST_S = 5e-5
FIRST_SHARE = 0.5  # A share of the shortest of the last waits: the first look then comes before the message.
NEXT_SHARE = 0.03  # A share of the time waited so far: a look may come this much too late.
LONGEST_S = 0.02
WINDOW_S = 0.2  # Some tens of the turns that programs get when they share a core.
LEAST_SHARE = 0.8  # A share of a core: a rank has 0.99 of a quiet core, and half to two thirds beside one busy process.
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0  # Every 30 s, one window tries whether the cores are quiet again.


def way_to_wait(comm: "MPI.Intracomm") -> str:
    """Decide what "auto" means where these ranks run: "spin", "sleep", or both in turn, "adapt".  **Collective**.

    Of many ranks for each core the root warns.
    """
    ranks = comm.gather((os.uname().nodename, os.sched_getaffinity(0), processor_quota()), ROOT)
    ratio = comm.bcast(ranks_per_core(ranks or ()) if comm.rank == ROOT else None, ROOT)
    if comm.rank == ROOT and ratio >= MANY:
        say(f"mpi_rollout: {ratio:,.0f} {CROWDED}; else start fewer ranks\n")
    return "sleep" if ratio >= MANY else "spin" if ratio > 1 else "adapt"


def ranks_per_core(ranks: Sequence[tuple[str, AbstractSet[int], float | None]]) -> float:
    """Return the ratio on the host where it is largest.

    Of each rank these are its host, the cores that it may run on, and the quota of its container in cores.
    """
    hosts: dict[str, list[tuple[AbstractSet[int], float | None]]] = {}
    for host, cores, quota in ranks:
        hosts.setdefault(host, []).append((cores, quota))
    return max(
        len(there) / min(len(set().union(*(cores for cores, _ in there))), there[0][1] or math.inf)
        for there in hosts.values()
    )


class Wait:
    """Waits for requests: looks between which a rank that `sleeps` leaves its core to others, or MPI's own waits.

    A look costs some microseconds, so there should be few of them.  A message comes about as late as the last ones.  So
    the first sleep is half of the shortest of the last waits; a long one (a trainer's update) says nothing about the
    next.  Then the time between looks grows with the time waited.

    Longer sleeps do not save time: of 64 ranks on two cores, each look that comes too late makes all waits longer, and
    with them the sleeps.  Shares of 0.9 and 0.1 gave 0.6 of the rate of these (2026-11-21, envs that sleep 5 ms).
    """

    def __init__(self, sleeps: Callable[[], bool] = lambda: True) -> None:
        self._sleeps, self._waited_s = sleeps, deque([0.0], NUM_REMEMBERED)

    def all(self, requests: "Sequence[MPI.Request]") -> None:
        if not self._sleeps():
            requests[0].Waitall(requests)
            return

        def look() -> bool | None:
            while indices := requests[0].Testsome(requests):  # MPICH takes in only one message a look.
                pass
            return True if indices is None else None

        self._until(look)

    def any(self, requests: "Sequence[MPI.Request]") -> int:
        if not self._sleeps():
            return requests[0].Waitany(requests)

        def look() -> int | None:
            index, is_over = requests[0].Testany(requests)
            return index if is_over else None

        return self._until(look)

    def some(self, requests: "Sequence[MPI.Request]") -> list[int]:
        """Return the indices of those that are over, one at least."""
        if not self._sleeps():
            return requests[0].Waitsome(requests) or []

        def look() -> list[int] | None:
            indices = requests[0].Testsome(requests)
            return [] if indices is None else indices or None

        return self._until(look)

    def _until(self, look: Callable[[], T | None]) -> T:
        start = now = perf_counter()
        pause_s, missed_s = min(FIRST_SHARE * min(self._waited_s), LONGEST_S), 0.0
        while (result := look()) is None:
            missed_s = now - start
            if pause_s < YIELDING_S and missed_s < YIELDING_S:
                os.sched_yield()
            else:
                sleep(max(pause_s, SHORTEST_S))
            now = perf_counter()
            pause_s = min(NEXT_SHARE * (now - start), LONGEST_S)
        # The message came between the last two looks.  If there was only a first sleep, it may have been far too long.
        self._waited_s.append(max(missed_s, (now - start) / 2))
        return result


class Adaptation:
    """Watches whether this rank gets the processor time that it could use; decides whether to sleep.

    It sleeps from when its core is shared until a try shows that it no longer is.  A rank that sleeps cannot tell: it
    has its turn at once because it left the core to others.  So after a rest it spins for a window.  If that was too
    early, the next rest is twice as long.

    Attributes
    ----------
    look_at
        When to ask again: until then, what it has told stays true.
    """

    def __init__(self) -> None:
        self._sleeps, self._rest_s, self._until = False, FIRST_REST_S, -math.inf
        self.restart()

    def restart(self) -> None:
        """Begin a new window: earlier time does not count."""
        self._before, self._is_short, self.look_at = processor_time(), False, perf_counter() + WINDOW_S

    def is_short(self, are_others: Callable[[], bool] = lambda: False) -> bool:
        """Tell what the last window showed.  This costs almost nothing, except once a window.

        At its end `are_others` tells whether a rank for which this one decides too gets too little processor time.
        """
        if perf_counter() >= self.look_at:
            before = self._before
            self.restart()
            if before is not None and self._before is not None:
                self._is_short = self._before.since(before).share < LEAST_SHARE
            self._is_short = self._is_short or are_others()
        return self._is_short

    def sleeps(self, are_others_short: Callable[[], bool] = lambda: False) -> bool:
        """Tell whether this rank should sleep while it waits, see `is_short`."""
        if self._sleeps:
            self._sleeps = perf_counter() < self._until
            if not self._sleeps:
                self.restart()
        elif self.is_short(are_others_short):
            now = perf_counter()
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S) if now - self._until < self._rest_s else FIRST_REST_S
            self._sleeps, self._until = True, now + self._rest_s
            self.look_at = self._until
        return self._sleeps


def wait_maker(way: str) -> Callable[[], Wait]:
    """Return a maker of one rank's waits for "spin", "sleep" or "adapt"; waits that adapt do so together."""
    return partial(Wait, Adaptation().sleeps if way == "adapt" else lambda: way == "sleep")
