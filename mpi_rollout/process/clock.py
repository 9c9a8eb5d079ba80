"""Time: where the seconds of a rank go, and when a run must stop so that its data are safe before a time limit."""

import os
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from time import perf_counter

from mpi_rollout.errors import UsageError

LEAST_MARGIN_S = 2.0  # The time for closing the file and leaving MPI.
ASK_EVERY_S = 900.0  # A job's limit seldom changes, and all jobs of a cluster ask the same daemon.
ASK_AGAIN_S, AHEAD_S = 10.0, 15.0  # Ask more often in the last seconds before the time to stop.
ANSWER_S = 5.0
MAX_TIMEOUT_S = 1e6  # faulthandler counts microseconds in 64 bits; this is eleven days.

PHASES = (  # What a rank does in a run.
    "policy",  # The root computes actions, or a rank those of its own envs.
    "send",  # The root checks and broadcasts them.
    "step",  # This rank's envs step.
    "wait",  # A worker waits for the root's next order.
    "gather",  # Slots travel to the root, which waits for slower ranks and lays slots into columns.
    "write",  # The root writes to the file, or waits until a thread has written.
    "other",  # The root counts, reports, and measures the limit.
)
WORDS = {  # What users read for phases, in this order; with those of `losses`, the glossary explains them.
    "step": "envs",
    "gather": "gather",
    "wait": "wait",
    "send": "send",
    "policy": "policy",
    "write": "write",
}


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

    def move(self, seconds: float, phase: str, to: str) -> None:
        """Take seconds of a phase for those of another one."""
        self.seconds[phase] -= seconds
        self.seconds[to] += seconds

    def restart(self) -> None:
        """Add the time since the last lap to no phase."""
        self.now = perf_counter()


def losses(
    seconds: float, mean_s: float, slowest_s: float, phases: Mapping[str, float], in_lockstep: bool, asks_on_ranks: bool
) -> dict[str, float]:
    """Return where the root's time went, as shares that add up to 1.

    `envs` is what the ranks need on average, `imbalance` the wait for the slowest of each step; the rest is
    this program: `exchange` (checking, sending, gathering, bookkeeping), `policy` and `write`.  Where ranks step
    while the root does other things, there is no such sum: `envs` are the root's, and `exchange` has all of its waits.

    `mean_s` and `slowest_s` have what a policy on the ranks took, too; `phases` say how much that is.
    """
    envs_s = mean_s - phases["policy"] * asks_on_ranks
    in_envs = {"envs": envs_s, "imbalance": slowest_s - mean_s} if in_lockstep else {"envs": phases["step"]}
    ours = {name: phases[name] for name in ("policy", "write")}
    parts = in_envs | {"exchange": seconds - sum(in_envs.values()) - sum(ours.values())} | ours
    return {name: value / (seconds or 1.0) for name, value in parts.items()}


class Spent:
    """The `losses` since the last asking."""

    def __init__(self, in_lockstep: bool, asks_on_ranks: bool):
        self._how, self._before = (in_lockstep, asks_on_ranks), dict[str, float]()

    def losses(self, seconds: float, mean_s: float, slowest_s: float, phases: Mapping[str, float]) -> dict[str, float]:
        """Return them, from `seconds` since the last asking and sums since the beginning."""
        sums = {"mean": mean_s, "slowest": slowest_s, **phases}
        new = {name: value - self._before.get(name, 0.0) for name, value in sums.items()}
        self._before = sums
        # A fragment that ended now counts whole, also what ranks did of it before the last asking.
        in_lockstep, asks_on_ranks = self._how
        known_s = new["slowest"] if in_lockstep else new["step"]
        known_s += new["write"] + new["policy"] * (not (in_lockstep and asks_on_ranks))
        return losses(max(seconds, known_s), new["mean"], new["slowest"], new, *self._how)


def utc_now() -> str:
    """Return the time as ISO 8601, in UTC with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seconds_of(text: str) -> float:
    """Return the seconds of a duration as SLURM writes it; UsageError if it is none, or zero.

    That is minutes, minutes:seconds, hours:minutes:seconds or days-hours[:minutes[:seconds]].
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"--max-walltime must be like 01:30:00 or 1-12:00:00, got {text!r}")
    days, first, second, third = (int(part or 0) for part in match.groups())
    begins_with_hours = match[1] is not None or match[4] is not None
    hours, minutes, seconds = (first, second, third) if begins_with_hours else (0, first, second)
    duration_s = (days * 24 + hours) * 3600.0 + minutes * 60.0 + seconds
    if duration_s == 0:
        raise UsageError(f"--max-walltime must be more than nothing, got {text!r}; without it there is no limit")
    return duration_s


def now_s() -> float:
    """Return the seconds since the boot: nobody sets this clock, and it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def has_deadline(max_walltime: str | None) -> bool:
    """Tell whether there is a time when a run must have stopped."""
    return max_walltime is not None or any(name in os.environ for name in ("SLURM_JOB_ID", "SLURM_JOB_END_TIME"))


class Deadline:
    """The earlier of `--max-walltime`, counted from the start of this process, and the end of the SLURM job.

    The end of the job may change while it runs, so SLURM is asked for it now and then, and before it is time to stop.
    """

    def __init__(self, max_walltime: str | None) -> None:
        self._own_end_s = float("inf") if max_walltime is None else process_start() + seconds_of(max_walltime)
        job_end = os.environ.get("SLURM_JOB_END_TIME", "")
        # It is a time of day, which is looked at once: somebody may set that clock.
        self._job_end_s = now_s() + float(job_end) - time.time() if job_end.isdecimal() else float("inf")
        # Older releases do not set the variable: then SLURM is asked at the first look.
        self._asked_s = now_s() - ASK_AGAIN_S if job_end.isdecimal() else float("-inf")

    @property
    def reason(self) -> str:
        """Return which of the two ends earlier."""
        return "the SLURM job's time limit" if self._job_end_s < self._own_end_s else "--max-walltime"

    def is_near(self, worst_commit_s: float, worst_pause_s: float) -> bool:
        """Tell whether it is time to stop.

        Twice the longest time of a commit is kept free, and twice the longest time between two calls of this method.
        """
        margin_s = LEAST_MARGIN_S + 2 * worst_commit_s + 2 * worst_pause_s
        looked_s = now_s()
        is_close = looked_s + margin_s + AHEAD_S >= self._job_end_s
        if looked_s - self._asked_s >= (ASK_AGAIN_S if is_close else ASK_EVERY_S):
            left_s = job_time_left()
            self._asked_s = now_s()
            if left_s is not None:
                self._job_end_s = self._asked_s + left_s
        return looked_s + margin_s >= min(self._own_end_s, self._job_end_s)


def job_time_left() -> float | None:
    """Ask SLURM how many seconds this job has left; None outside of a job, or without an answer."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    if "SLURM_ARRAY_TASK_ID" in os.environ:  # The number of an array's last element is also that of the whole array.
        job = f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ANSWER_S
        )
        time_left = done.stdout.strip()
        return float("inf") if time_left == "UNLIMITED" else seconds_of(time_left)
    except (OSError, subprocess.SubprocessError, UsageError):
        return None


def process_start() -> float:
    """Return when this process was started, before its imports, by the clock of `now_s`."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")  # Not by /proc/uptime: lxcfs gives the age of a container there.
