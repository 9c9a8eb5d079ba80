"""`--trace`: what chosen ranks do in chosen steps, as a JSON array of complete events for Perfetto and Chrome.

The events are the laps of the ranks' clocks, see `process.clock`.  Clocks of one host are the same one.  Those of other
hosts are put beside that of rank 0 by the quickest of some calls: they are off by at most half of what it takes.
"""

import gzip
import json
import os
import re
from collections.abc import Callable, Sequence
from time import perf_counter

from mpi_rollout.config import RolloutConfig
from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import RankLost
from mpi_rollout.process.clock import Clock
from mpi_rollout.process.console import say
from mpi_rollout.process.paths import located
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.text import system_words

MOST_EVENTS = 50_000  # Of a rank: 5 MB of JSON.
NUM_CALLS = 10  # To compare the clocks of hosts.
Lap = tuple[str, float, float, int]  # The phase, its begin and end in seconds, and the step.


class TracingClock(Clock):
    """Keeps the laps of some steps, counted from `begin` on.  A lap takes 1 us, and 0.3 us when it has them all."""

    def __init__(self, num_steps: Callable[[], int]):
        super().__init__()
        self.num_steps, self.laps = num_steps, list[Lap]()
        self._steps, self._is_on = range(0), False

    def begin(self, first: int, stop: int) -> float:
        """Keep the laps from `first` to `stop` - 1, counted from now; return the time."""
        self.laps.clear()
        base = self.num_steps()
        self._steps, self._is_on = range(base + first, base + stop), True
        return perf_counter()

    def lap(self, phase: str) -> float:
        start, elapsed_s = self.now, super().lap(phase)
        if self._is_on:
            step = self.num_steps() - (phase not in ("policy", "send", "wait"))  # The others follow upon a step.
            if step >= self._steps.stop or len(self.laps) == MOST_EVENTS:
                self._is_on = False
            elif step >= self._steps.start:
                self.laps.append((phase, start, self.now, step))
        return elapsed_s


class Trace:
    """The trace of a run, on every rank; the root begins and writes it.  Without `--trace` it does nothing."""

    def __init__(self, config: RolloutConfig, worker: Worker):
        self._path, self._offsets = config.trace, [0.0]
        ranks, self._steps = trace_part(config.trace_part)
        if self._path is not None:
            if worker.rank in ranks:
                worker.clock = TracingClock(lambda: max((one.num_steps for one in worker.slices), default=0))
            worker.methods |= {"begin_trace": self._begin, "take_trace": self._laps}
        self._clock, self._has_envs = worker.clock, bool(worker.slices)

    def _begin(self, first: int, stop: int) -> float:
        return self._clock.begin(first, stop) if isinstance(self._clock, TracingClock) else perf_counter()

    def _laps(self) -> tuple[str, list[Lap]]:
        laps = self._clock.laps if isinstance(self._clock, TracingClock) else []
        return os.uname().nodename, laps

    def begin(self, driver: Driver, num_steps: Callable[[], int]) -> None:
        """Compare the clocks and begin; `num_steps` is of the run."""
        if self._path is None:
            return
        if isinstance(self._clock, TracingClock) and not self._has_envs:
            self._clock.num_steps = num_steps
        best_s = float("inf")
        for _ in range(NUM_CALLS):
            start = perf_counter()
            times = driver.call_ranks("begin_trace", self._steps.start, self._steps.stop)
            elapsed_s = perf_counter() - start
            if elapsed_s < best_s:
                best_s, self._offsets = elapsed_s, [start + elapsed_s / 2 - rank_s for rank_s in times]

    def write(self, driver: Driver) -> None:
        """Write the file at the end of a run; say if that fails."""
        if self._path is None:
            return
        try:
            text = json.dumps(self._events(driver.call_ranks("take_trace"))).encode()
            with (gzip.open if self._path.endswith(".gz") else open)(located(self._path), "wb") as file:
                file.write(text)
        except (OSError, RankLost) as error:
            say(f"mpi_rollout: --trace {self._path}: cannot write it: {system_words(error)}\n")

    def _events(self, reports: Sequence[tuple[str, list[Lap]]]) -> list[dict[str, object]]:
        events: list[dict[str, object]] = []
        zero_s = min((laps[0][1] for _, laps in reports[:1] if laps), default=0.0)
        for rank, (host, laps) in enumerate(reports):
            offset_s = 0.0 if host == reports[0][0] else self._offsets[rank]
            if laps:
                name = {"name": f"rank {rank} ({host})"}
                events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": name})
            for phase, start, end, step in laps:
                us = {"ts": round(1e6 * (start + offset_s - zero_s), 3), "dur": round(1e6 * (end - start), 3)}
                events.append({"name": phase, "ph": "X", "pid": rank, "tid": 0, **us, "args": {"step": step}})
        return events


def trace_part(text: str) -> tuple[range, range]:
    """Read the ranks and steps of `--trace-part`, which was checked."""
    first_rank, last_rank, first, last = map(int, re.findall(r"\d+", text))
    return range(first_rank, last_rank + 1), range(first, last + 1)
