"""A rank and its launcher: each must learn when the other one ends.

A rank whose launcher was killed must not live on, so the kernel ends it.  No Python thread can do that: none runs while
an env is in C code that holds the interpreter's lock.

`mpirun --with-ft ulfm` (5.0.11) tells the other ranks about a rank that a signal ended, and about one that left with
code 0.  It tells nobody about a rank that left with another code, and the others would wait forever.  Simulators leave
like that: `exit(1)` in a library, STOP in Fortran.  So `guard` makes the rank a child of the process that the launcher
started, and that process kills itself with SIGKILL if the rank leaves before the run's end.
"""

import ctypes
import os
import signal
from pathlib import Path
from typing import NoReturn

from mpi_rollout.errors import RolloutError
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.process.start import heed_signals, is_heeding

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# First letters of programs that start ranks on their host: of Open MPI, of MPICH and its relatives, of SLURM, of PALS.
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "hydra", "slurmstepd", "palsd")
LOOK_EVERY_S = 0.5
OVER, LAST = b".", b"1"
_pipes: list[int] = []  # They lead to the process that stands in for this one.


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends.

    Parameters
    ----------
    parent
        The process that was the parent; if it has ended already, this process ends now.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_launcher() -> None:
    """Let the kernel kill this process when its launcher ends.  Call it early, before envs are made.

    It does so only where the launcher itself is the parent.  A parent with another name may be a wrapper script, or a
    program that is meant to leave this process behind; the end of such a parent says nothing about the launcher.
    """
    parent = os.getppid()
    if is_launcher(parent):
        end_with(parent)


def is_launcher(pid: int | str) -> bool:
    """Tell whether a process is a launcher or one of its helpers, by its name."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith(LAUNCHERS)
    except OSError:
        return False


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
