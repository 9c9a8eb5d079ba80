"""When a run must stop so that all it has done is safe before somebody ends it."""

import os
import re
import subprocess
import time

from mpi_rollout.errors import UsageError

LEAST_MARGIN_S = 2.0  # For closing the file and leaving MPI.
ASK_EVERY_S = 900.0  # The limit of a job is seldom changed, and all jobs of a cluster ask the same daemon.
ASK_AGAIN_S, AHEAD_S = 10.0, 15.0  # But more often when, so much before, it would be time to stop.
ANSWER_S = 5.0


def seconds_of(text: str) -> float:
    """Read a duration as SLURM writes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes...].

    Raises
    ------
    UsageError
        It is none, or no time at all.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip(), re.ASCII)
    if match is None:
        raise UsageError(f"--max-walltime must be like 01:30:00 or 1-12:00:00, got {text!r}")
    days, first, second, third = (int(part) if part else None for part in match.groups())
    if days is not None:
        hours, minutes, seconds = first, second or 0, third or 0
    elif third is not None:
        hours, minutes, seconds = first, second, third
    else:
        hours, minutes, seconds = 0, first, second or 0
    found_s = ((days or 0) * 24 + hours) * 3600.0 + minutes * 60.0 + seconds
    if found_s == 0:
        raise UsageError(f"--max-walltime must be more than nothing, got {text!r}; without it there is no limit")
    return found_s


class Deadline:
    """The earlier of `--max-walltime`, counted from the start of this process, and the end of the SLURM job.

    The latter may be changed while the job runs, so SLURM is asked for it now and then, and before it is time to stop.

    Parameters
    ----------
    max_walltime
        As the user wrote it, or None.
    """

    def __init__(self, max_walltime: str | None):
        self._own_end_s = float("inf") if max_walltime is None else process_start() + seconds_of(max_walltime)
        told = os.environ.get("SLURM_JOB_END_TIME", "")
        self._job_end_s = float(told) if told.isdecimal() else float("inf")
        # Older releases tell jobs no end, so they are asked at the first look.
        self._asked_s = time.time() - ASK_AGAIN_S if told.isdecimal() else 0.0

    @property
    def reason(self) -> str:
        """Which of the two is the earlier one."""
        return "the SLURM job's time limit" if self._job_end_s < self._own_end_s else "--max-walltime"

    def is_near(self, worst_commit_s: float, worst_pause_s: float) -> bool:
        """Tell whether it is time to stop.

        Parameters
        ----------
        worst_commit_s
            The longest that a commit has taken: twice that is kept free.
        worst_pause_s
            The longest between two calls of this.
        """
        margin_s = LEAST_MARGIN_S + 2 * worst_commit_s + 2 * worst_pause_s
        now_s = time.time()
        is_close = now_s + margin_s + AHEAD_S >= self._job_end_s
        if now_s - self._asked_s >= (ASK_AGAIN_S if is_close else ASK_EVERY_S):
            left_s = job_time_left()
            self._asked_s = time.time()
            if left_s is not None:
                self._job_end_s = self._asked_s + left_s
        return now_s + margin_s >= min(self._own_end_s, self._job_end_s)


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
        told = done.stdout.strip()
        return float("inf") if told == "UNLIMITED" else seconds_of(told)
    except (OSError, subprocess.SubprocessError, UsageError):
        return None


def process_start() -> float:
    """When this process was started, in seconds since the epoch: imports count too."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    # Not /proc/uptime: lxcfs gives the age of a container there, and these ticks count from the boot of its host.
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")
