"""A rank and its launcher: each must learn when the other one ends; see also `start.end_with_launcher`.

`mpirun --with-ft ulfm` (5.0.11) tells the other ranks about a rank that a signal ended, and about one that left with
code 0.  It tells nobody about a rank that left with another code, and the others would wait forever.  Simulators leave
like that: `exit(1)` in a library, STOP in Fortran.  So `guard` makes the rank a child of the process that the launcher
started, and that process kills itself with SIGKILL if the rank leaves before the run's end.
"""

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mpi_rollout.errors import RolloutError
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.process.start import end_with, heed_signals, is_heeding

LOOK_EVERY_S = 0.5
MOST_KEPT = 2000  # Characters of a failed job's stderr that are kept.
OVER, LAST = b".", b"1"
_pipes: list[int] = []  # They lead to the process that stands in for this one.


def guard() -> None:
    """Go on in a child of this process, before MPI is started."""
    reader, writer = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid:
        os.close(writer)
        _stand_in_for(pid, reader)
    if is_heeding():
        heed_signals()
    end_with(parent)
    _pipes.append(writer)


def release() -> None:
    """Say that the run is over, well or badly: from now on the launcher gets the exit code."""
    for writer in _pipes:
        os.write(writer, OVER)


def be_last() -> None:
    """Say that no other rank is left to be told: the launcher would report 0 if a signal ended the last rank."""
    for writer in _pipes:
        os.write(writer, LAST)


def is_guarded() -> bool:
    """Tell whether another process stands in for this one."""
    return bool(_pipes)


def _stand_in_for(pid: int, reader: int) -> NoReturn:
    """Wait for the child and end as it did."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _frame: os.kill(pid, number))
    status = _wait_for(pid, os.getppid())
    os.set_blocking(reader, False)  # Processes that the rank has left behind may still hold the other end.
    try:
        said = os.read(reader, 16)
    except BlockingIOError:
        said = b""
    if not said:
        os.kill(os.getpid(), signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        code = 128 - code
    os._exit(code if OVER in said else code or RolloutError.exit_code)


def _wait_for(pid: int, launcher: int) -> int:
    """Wait for the child and return its status.

    The launcher may go first, since it does not end all ranks after a loss.  Then end both processes.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return status
        if os.getppid() != launcher:
            os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], LOOK_EVERY_S)


def find_launcher(given: str = "") -> str:
    """Return the launcher that was given, else the mpirun beside this interpreter, else the system's; "" for none."""
    beside = Path(sys.executable).parent / "mpirun"
    return given.strip() or (str(beside) if beside.exists() else shutil.which("mpirun") or "")


def last_words(printed: str, noise: Sequence[str] = ()) -> str:
    """Return the last words of a job: its own messages, or else the launcher's, after the error that a traceback names.

    Reports show only the first line.  So lines that only draw frames are left out, and those with a text of `noise`.
    """
    lines = [line for line in printed.replace("\0", "").strip().splitlines() if line.strip(" \t-=*")]
    lines = [line for line in lines if not any(words in line for words in noise)]
    if own := [line.removeprefix("mpi_rollout: ") for line in lines if line.startswith("mpi_rollout: ")]:
        return ": " + "\n".join(own)[-MOST_KEPT:]
    starts = [place for place, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    below = lines[starts[-1] + 1 :] if starts else []
    error = [f"{line}\n" for line in below if not line.startswith((" ", "\t"))][:1]
    return ": " + "".join(error) + "\n".join(lines)[-MOST_KEPT:] if lines else ""
