"""How a rank waits for messages: at the cost of a core, or asleep.

MPI's own waits spin.  Nothing is quicker where each rank has a core to itself, and where two or three share one they
are still quicker: both MPIs let others run then.  Of 64 ranks on two cores those who wait take MPICH's cores from those
who work (results/measured/README.md, "How ranks wait").  So where a host has many more ranks than cores, which is for
envs that wait themselves, ranks look, sleep, and look again.

Where other programs run on the ranks' cores, a rank that spins uses up its turn, and has none when there is work: then
sleeping is three times as quick.  Whether they do is not known at the start, and changes.  So ranks that have a core
each look, a few times a second, how long they waited for their turn.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, sleep
from typing import Any

from mpi_rollout.core.host import processor_quota, processor_time
from mpi_rollout.exchange.world import ROOT

MANY = 4  # Ranks for each core: with fewer, sleeping was never the quicker.
NUM_REMEMBERED = 4
YIELDING_S = 1e-3  # Of shorter waits each sleep would be a large part.
SHORTEST_S = 5e-5
FIRST_SHARE = 0.5  # Of the shortest of the last waits: so the first look comes before what is waited for.
NEXT_SHARE = 0.03  # Of what has been waited: by how much a look may come too late.
LONGEST_S = 0.02
WINDOW_S = 0.2  # Some tens of the turns that systems give to programs that share a core.
LEAST_SHARE = 0.8  # Of a core: of a quiet one a rank has 0.99, beside one busy process half to two thirds.
FIRST_REST_S = 1.0
LONGEST_REST_S = 30.0  # Of every 30 s one window is spent in trying whether the cores are quiet again.


def way_to_wait(comm: Any) -> str:
    """What "auto" means where these ranks run: "spin", "sleep", or either in turn, "adapt".  **Collective.**"""
    found = comm.gather((os.uname().nodename, os.sched_getaffinity(0), processor_quota()), ROOT)
    ratio = comm.bcast(ranks_per_core(found) if comm.rank == ROOT else None, ROOT)
    return "sleep" if ratio >= MANY else "spin" if ratio > 1 else "adapt"


def ranks_per_core(ranks: Sequence[tuple[str, set[int], float | None]]) -> float:
    """On the host that has most, of each rank's host, cores that it may run on, and its container's quota in cores."""
    hosts: dict[str, list[tuple[set[int], float | None]]] = {}
    for host, cores, quota in ranks:
        hosts.setdefault(host, []).append((cores, quota))
    return max(
        len(there) / min(len(set().union(*(cores for cores, _ in there))), there[0][1] or math.inf)
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


class Watch:
    """Whether this rank gets the processor time that it could use."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        """Begin a new window: what was before does not count."""
        self._before, self._is_short, self._due = processor_time(), False, perf_counter() + WINDOW_S

    def is_short(self) -> bool:
        """By the last window.  Costs next to nothing, but for once a window."""
        if perf_counter() >= self._due:
            before = self._before
            self.restart()
            if before is not None and self._before is not None:
                self._is_short = self._before.since(before).share < LEAST_SHARE
        return self._is_short


class Adaptation:
    """Whether to sleep: as soon as a core is shared, until a try shows that it no longer is.

    A rank that sleeps cannot tell: it has its turn at once because it left the core to others.  So after a rest it
    spins for a window.  Each time that was too early, the next rest is twice as long.
    """

    def __init__(self):
        self.watch = Watch()
        self._sleeps, self._rest_s, self._until = False, FIRST_REST_S, -math.inf

    def sleeps(self, is_told: bool = False) -> bool:
        """Whether this rank is to sleep while it waits.

        Parameters
        ----------
        is_told
            Another rank, for which this one decides too, is short of processor time.
        """
        if self._sleeps:
            self._sleeps = perf_counter() < self._until
            if not self._sleeps:
                self.watch.restart()
        elif is_told or self.watch.is_short():
            now = perf_counter()
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S) if now - self._until < self._rest_s else FIRST_REST_S
            self._sleeps, self._until = True, now + self._rest_s
        return self._sleeps


class Adapting:
    """Waits that spin while this rank has a core to itself, and sleep while it does not."""

    def __init__(self, adaptation: Adaptation):
        self._adaptation, self._spinning, self._sleeping = adaptation, Spinning(), Sleeping()

    def one(self, request: Any) -> None:
        self._now().one(request)

    def all(self, requests: Sequence[Any]) -> None:
        self._now().all(requests)

    def any(self, requests: Sequence[Any]) -> int:
        return self._now().any(requests)

    def some(self, requests: Sequence[Any]) -> list[int]:
        return self._now().some(requests)

    def _now(self) -> Spinning | Sleeping:
        return self._sleeping if self._adaptation.sleeps() else self._spinning


def waits_of(way: str) -> Callable[[], Spinning | Sleeping | Adapting]:
    """What makes the waits of one rank, for "spin", "sleep" or "adapt"; those that adapt do so together."""
    return {"spin": Spinning, "sleep": Sleeping}.get(way) or partial(Adapting, Adaptation())
