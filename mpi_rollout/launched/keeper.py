"""Keeps a job for a trainer: `keeper.py TRAINER FOLDER COMMAND...` ends the command when that process has ended.

It also passes on what a job of SLURM writes to FOLDER/log, and removes the folder at the end.  SIGTERM ends the job at
once.  This file needs nothing but Python, so that it starts quickly.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TextIO

JOB_ENDS_S = 1.2  # A job whose trainer is gone ends by itself: rank 0 completes its file.
ENDING_S = 0.4  # From SIGTERM to SIGKILL.
LOOK_EVERY_S = 0.5


def keep(trainer: int, process: subprocess.Popen, log: TextIO) -> int:
    """Wait for the end of the job, or of the trainer, whose descriptor this is; return an exit code."""
    job = os.pidfd_open(process.pid)
    while True:
        ready = select.select([trainer, job], [], [], LOOK_EVERY_S)[0]
        print(log.read(), end="", file=sys.stderr, flush=True)
        if job in ready:
            code = process.wait()
            return code if code >= 0 else 128 - code
        if trainer in ready:
            select.select([job], [], [], JOB_ENDS_S)
            return 1


def end(process: subprocess.Popen, ending_s: float) -> None:
    """End what is left of a job.  Launchers pass a SIGTERM on to ranks on other hosts; a SIGKILL they cannot."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ending_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    """Keep the job that the command line names; return its exit code."""
    trainer, folder, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        descriptor = os.pidfd_open(int(trainer))
        with open(os.path.join(folder, "log"), "a+", errors="replace") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                return keep(descriptor, process, log)
            finally:
                end(process, ENDING_S)
                if command[0] == "sbatch":
                    subprocess.run(["scancel", "--quiet", f"--name={os.path.basename(folder)}"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
