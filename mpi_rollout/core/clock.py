"""Where the seconds of a rank went."""

from time import perf_counter

PHASES = ("policy", "send", "step", "wait", "gather", "write", "other")
"""What a rank does in a run.

policy  root: computing actions
send    root: checking and broadcasting them
step    this rank's envs
wait    a worker waits for the root's next order
gather  slots on their way to the root; on the root also waiting for slower ranks and laying slots into columns
write   root: waiting for a free block, that is, for the writer
other   root: bookkeeping, telling, measuring the limit
"""


class Clock:
    """Adds up seconds by phase: each `lap` books the time since the last one.  One call costs about 0.1 us."""

    def __init__(self):
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.now = perf_counter()

    def lap(self, phase: str) -> float:
        """Book the time since the last lap and return it in seconds."""
        now = perf_counter()
        elapsed = now - self.now
        self.seconds[phase] += elapsed
        self.now = now
        return elapsed

    def restart(self) -> None:
        """Book nothing for the time since the last lap."""
        self.now = perf_counter()
