"""Where the seconds of a rank go: its time by phase."""

from datetime import UTC, datetime
from time import perf_counter

MAX_TIMEOUT_S = 1e6  # faulthandler counts microseconds in 64 bits; this is eleven days.

PHASES = ("policy", "send", "step", "wait", "gather", "write", "other")
"""What a rank does in a run.

policy  the root computes actions
send    the root checks and broadcasts them
step    this rank's envs step
wait    a worker waits for the root's next order
gather  slots travel to the root; on the root also: wait for slower ranks, and lay slots into columns
write   the root waits for a free block, that is, for the writer
other   the root counts, reports, and measures the limit
"""


class Clock:
    """Adds up seconds by phase: each `lap` adds the time since the last one.  One call costs about 0.1 us."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.now = perf_counter()

    def lap(self, phase: str) -> float:
        """Add the time since the last lap to a phase and return it in seconds."""
        now = perf_counter()
        elapsed_s = now - self.now
        self.seconds[phase] += elapsed_s
        self.now = now
        return elapsed_s

    def restart(self) -> None:
        """Add the time since the last lap to no phase."""
        self.now = perf_counter()


def utc_now() -> str:
    """Return the time, as ISO 8601 in UTC with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
