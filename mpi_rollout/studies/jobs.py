"""Running one job of a study, whatever becomes of it: to its end, to its time limit, or until somebody stops us."""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import Interrupted
from mpi_rollout.exchange.waiting import CROWDED
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.studies.plan import run_command

Summary = dict[str, Any]  # What a job prints as JSON when it ends.

ENDING_S = 5.0
LOOK_EVERY_S = 0.5  # Also how long a signal waits: seldom enough to take nothing from what is measured.
UNBOUND = "cluster configuration lacks support for cpu binding"  # srun says so before what matters, and goes on.
MOST_KEPT = 2000  # Characters of a failed job's stderr that are kept.


class JobFailed(Exception):
    """A job gave no result; `code` is None if it was ended because it took too long."""

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code

    @property
    def headline(self) -> str:
        return str(self).splitlines()[0]


class Stop:
    """Whether somebody asked us to stop `what`: `number` is the signal, or 0."""

    def __init__(self, what: str = "the study"):
        self.what, self.number = what, 0

    def check(self) -> None:
        """Raise Interrupted if somebody did."""
        if self.number:
            raise Interrupted(f"{self.what} was stopped by {signal.Signals(self.number).name}")


@contextmanager
def stopping_on_signals(what: str = "the study") -> Iterator[Stop]:
    """Note SIGINT, SIGTERM and SIGUSR1 instead of dying of them."""
    stop = Stop(what)

    def note(number: int, _frame: FrameType | None) -> None:
        stop.number = number

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class JobRunner:
    """Runs jobs one after the other, in a folder that is empty after each; `launcher` has no `-n`."""

    folder: Path
    launcher: str
    timeout_s: float
    stop: Stop

    def run(self, num_ranks: int, config: RolloutConfig) -> Summary:
        """Run a configuration on some ranks; return and raise what `run_command` does."""
        return self.run_command(run_command(self.launcher, num_ranks, config))

    def run_command(self, command: list[str]) -> Summary:
        """Run a command to its end; return the summary that it printed as a line of JSON.

        Its output goes to files, not pipes: processes that outlive a killed launcher would keep pipes open.
        JobFailed if it gave no summary; Interrupted if somebody asked us to stop, and the job was ended.
        """
        self.stop.check()
        try:
            return self._run(command)
        finally:
            for path in self.folder.iterdir():
                path.unlink(missing_ok=True)

    def _run(self, command: list[str]) -> Summary:
        out, err = self.folder / "stdout", self.folder / "stderr"
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, start_new_session=True
            )
        try:
            has_ended = self._wait(process)
        finally:
            _end(process)
        printed = err.read_text(errors="replace")
        self.stop.check()
        if not has_ended:
            raise JobFailed(f"did not end within {self.timeout_s:g} s" + tail(printed))
        code = process.returncode
        if code == Interrupted.exit_code:  # Somebody stopped the job, or its batch job's time is over.
            raise Interrupted(f"{self.stop.what} was stopped with its job{tail(printed)}")
        if code:
            how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
            raise JobFailed(how + tail(printed), code)
        return _summary(out.read_text(errors="replace"), printed)

    def _wait(self, process: subprocess.Popen) -> bool:
        """Wait for a process; return False if it still runs at its time limit or when somebody asks us to stop."""
        descriptor = os.pidfd_open(process.pid)
        try:
            deadline = monotonic() + self.timeout_s
            while not self.stop.number and (left_s := deadline - monotonic()) > 0:
                if select.select([descriptor], [], [], min(left_s, LOOK_EVERY_S))[0]:
                    process.wait()
                    return True
        finally:
            os.close(descriptor)
        return False


def _end(process: subprocess.Popen) -> None:
    """End what is left of a job.  Launchers pass a SIGTERM on to ranks on other hosts; a SIGKILL they cannot."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(printed: str) -> str:
    """Return what a job said last: its own messages, or else the launcher's.

    Reports show only the first line of a launcher's messages.  So lines that only draw frames are left out, and the
    last line of a traceback, which names the error, comes first.
    """
    printed = printed.replace("\0", "")  # Open MPI's launcher writes some, and HDF5 takes none in a text.
    noise = UNBOUND, CROWDED
    lines = [line for line in printed.strip().splitlines() if line.strip(" \t-=*")]
    lines = [line for line in lines if not any(words in line for words in noise)]
    own = [line for line in lines if line.startswith("mpi_rollout: ")]
    text = "\n".join(own or lines)[-MOST_KEPT:]
    if not own and (error := _error_of(lines)):
        text = f"{error}\n{text}"
    return f": {text.removeprefix('mpi_rollout: ')}" if text else ""


def _error_of(lines: list[str]) -> str:
    """Return the line below the last traceback, which names the error; empty without one."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    below = lines[starts[-1] + 1 :] if starts else []
    return next((line for line in below if not line.startswith((" ", "\t"))), "")


def _summary(printed: str, errors: str) -> Summary:
    for line in reversed(printed.splitlines()):
        with suppress(ValueError):
            summary = json.loads(line)
            if isinstance(summary, dict) and summary.get("complete"):
                return summary
    raise JobFailed("exit code 0, but it printed no summary" + tail(errors), 0)
