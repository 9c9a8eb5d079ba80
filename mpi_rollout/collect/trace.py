"""`--trace`: what chosen ranks do in chosen steps, as a JSON array of complete events for Perfetto and Chrome.

The events are the laps of the ranks' clocks, see `process.clock`.  Clocks of one host are the same one.  Those of other
hosts are put beside that of rank 0 by the quickest of some calls: they are off by at most half of what it takes.
"""

import gzip
import json
import os
from collections.abc import Callable, Sequence
from time import perf_counter

from mpi_rollout.collect.watcher import Progress, Watcher
from mpi_rollout.config import RolloutConfig
from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import Option, RankLost, UsageError
from mpi_rollout.process.clock import WORDS, Clock
from mpi_rollout.process.console import say
from mpi_rollout.process.paths import located
from mpi_rollout.ranks.set_up import RankParts
from mpi_rollout.storage.ownership import check_place
from mpi_rollout.storage.status import status_path
from mpi_rollout.text import system_words

MOST_EVENTS = 50_000  # Of a rank: 5 MB of JSON.
EVENT = b'[{"name": "'  # How a trace begins.
NUM_CALLS = 10  # To compare the clocks of hosts.
Lap = tuple[str, float, float, int]  # The phase, its begin and end in seconds, and the step.


class TracingClock(Clock):
    """Keeps the laps of these steps, counted from `begin` on.  A lap takes 1 us, and 0.3 us when it has them all."""

    def __init__(self, steps: range, num_steps: Callable[[], int]):
        super().__init__()
        self.laps: list[Lap] = []
        self._num_steps = num_steps
        self._steps, self._kept, self._is_on = steps, range(0), False

    def follow(self, num_steps: Callable[[], int]) -> None:
        """Count the steps of the run in place of those of a rank's own envs: it has none."""
        self._num_steps = num_steps

    def begin(self) -> float:
        """Keep laps from now on; return the time."""
        self.laps.clear()
        now = self._num_steps()
        self._kept, self._is_on = range(now + self._steps.start, now + self._steps.stop), True
        return perf_counter()

    def lap(self, phase: str) -> float:
        start, elapsed_s = self.now, super().lap(phase)
        if self._is_on:
            step = self._num_steps() - (phase not in ("policy", "send", "wait"))  # The others follow upon a step.
            if step >= self._kept.stop or len(self.laps) == MOST_EVENTS:
                self._is_on = False
            elif step >= self._kept.start:
                self.laps.append((phase, start, self.now, step))
        return elapsed_s


class TraceLaps:
    """What a rank's clock keeps, as a `Service`."""

    name = "trace"

    def __init__(self, clock: TracingClock):
        self._clock = clock

    def begin(self) -> float:
        """Keep laps from now on; return the time."""
        return self._clock.begin()

    def take(self) -> tuple[str, list[Lap]]:
        """Return this host and what was kept."""
        return os.uname().nodename, self._clock.laps


def tracing_clock(config: RolloutConfig, parts: RankParts) -> TracingClock:
    """Return the clock of a rank of a run that is traced."""
    ranks, steps = config.traced
    return TracingClock(steps if parts.rank in ranks else range(0), lambda: max(one.num_steps for one in parts.slices))


class Trace(Watcher):
    """Writes the trace of a run whose ranks have a `tracing_clock`; `num_steps` returns how many it has taken."""

    def __init__(self, path: str, driver: Driver, num_steps: Callable[[], int]):
        self._path, self._driver = path, driver
        self._offsets: list[float] = []  # What the ranks' clocks lag behind that of rank 0; none before the first step.
        if not driver.worker.slices and isinstance(driver.clock, TracingClock):
            driver.clock.follow(num_steps)

    def on_pause(self, progress: Progress) -> None:
        """Compare the clocks, and begin, before the first step."""
        if self._offsets:
            return
        best_s, laps = float("inf"), self._driver.service(TraceLaps)
        for _ in range(NUM_CALLS):
            start = perf_counter()
            times = self._driver.call_ranks(laps.begin)
            elapsed_s = perf_counter() - start
            if elapsed_s < best_s:
                best_s, self._offsets = elapsed_s, [start + elapsed_s / 2 - rank_s for rank_s in times]

    def on_close(self, progress: Progress) -> None:
        """Write the file; say if that fails."""
        try:
            reports = self._driver.call_ranks(self._driver.service(TraceLaps).take)
            text = json.dumps(events_of(reports, self._offsets or [0.0] * len(reports))).encode()
            with (gzip.open if self._path.endswith(".gz") else open)(located(self._path), "wb") as file:
                file.write(text)
        except (OSError, RankLost) as error:
            say(f"mpi_rollout: --trace {self._path}: cannot write it: {system_words(error)}\n")


def events_of(reports: Sequence[tuple[str, list[Lap]]], offsets: Sequence[float]) -> list[dict[str, object]]:
    """Return the events of all ranks; clocks of other hosts than that of rank 0 lag behind by `offsets`."""
    events: list[dict[str, object]] = []
    offsets = [0.0 if host == reports[0][0] else offsets[rank] for rank, (host, _) in enumerate(reports)]
    starts = [laps[0][1] + offset_s for (_, laps), offset_s in zip(reports, offsets, strict=True) if laps]
    zero_s = min(starts, default=0.0)
    for rank, ((host, laps), offset_s) in enumerate(zip(reports, offsets, strict=True)):
        if laps:
            name = {"name": f"rank {rank} ({host})"}
            events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": name})
        for phase, start, end, step in laps:
            first, stop = (round(1e9 * (time_s + offset_s - zero_s)) for time_s in (start, end))
            us = {"ts": first / 1000, "dur": max(stop - first - 1, 0) / 1000}  # Viewers nest events that touch.
            event = {"name": WORDS.get(phase, phase), "ph": "X", "pid": rank, "tid": 0, "args": {"step": step}}
            events.append(event | us)
    return events


def check_trace(config: RolloutConfig, path: str) -> None:
    """Refuse a place that cannot be written, or where the trace would replace something else at the run's end."""
    place = os.path.realpath(located(path))
    check_place("trace", path, place)
    if place in map(os.path.realpath, (config.path, f"{config.path}.part", status_path(config.path))):
        raise UsageError(Option("trace", path), ": the run itself writes this file; give the trace another name")
    if os.path.exists(place) and not _is_trace(place):
        raise UsageError(Option("trace", path), " exists and is no trace; move it away or give the trace another name")


def _is_trace(place: str) -> bool:
    if not os.path.isfile(place):  # To open a pipe would wait for whoever reads it.
        return False
    try:
        with (gzip.open if place.endswith(".gz") else open)(place, "rb") as file:
            return file.read(len(EVENT)) in (EVENT, b"[]", b"")
    except (OSError, EOFError):  # It is no .gz, or cannot be read.
        return False
