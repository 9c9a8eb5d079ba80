"""When a run must stop so that all it has done is safe before somebody ends it."""

import os
import re
import time

from mpi_rollout.errors import UsageError

LEAST_MARGIN_S = 2.0  # For closing the file and leaving MPI.


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
    """The earliest of `--max-walltime`, counted from the start of this process, and the end of the SLURM job.

    Parameters
    ----------
    max_walltime
        As the user wrote it, or None.
    """

    def __init__(self, max_walltime: str | None):
        ends = []
        if max_walltime is not None:
            ends.append(("--max-walltime", process_start() + seconds_of(max_walltime)))
        slurm = os.environ.get("SLURM_JOB_END_TIME", "")
        if slurm.isdecimal():
            ends.append(("the SLURM job's time limit", float(slurm)))
        self.reason, self._end = min(ends, key=lambda end: end[1], default=("", float("inf")))

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
        return time.time() + margin_s >= self._end


def process_start() -> float:
    """When this process was started, in seconds since the epoch: imports count too."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    # Not /proc/uptime: lxcfs gives the age of a container there, and these ticks count from the boot of its host.
    since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot_s + ticks / os.sysconf("SC_CLK_TCK")
