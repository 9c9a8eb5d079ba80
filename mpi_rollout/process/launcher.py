"""A process that the launcher knows in place of its rank, so that the launcher learns of every way in which one ends.

`mpirun --with-ft ulfm` (5.0.11) tells the ranks that are left of one that a signal has ended, and of one that left
with code 0; of one that left with another code it tells nobody, and the others would wait for ever.  Simulators leave
so: `exit(1)` in a library, STOP in Fortran.  So the rank is a child of the process that was started, and that ends
itself by SIGKILL when the rank leaves before the run's end.
"""

import os
import signal

from mpi_rollout.errors import RolloutError
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.process.parent import end_with

LOOK_EVERY_S = 0.5
OVER, LAST = b".", b"1"
_pipes: list[int] = []  # To the process that stands in for this one.


def guard() -> None:
    """Go on in a child of this process, before MPI is started."""
    reader, writer = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid:
        os.close(writer)
        _stand_in_for(pid, reader)
    end_with(parent)
    _pipes.append(writer)


def release() -> None:
    """Say that the run is over, well or badly: from now on the exit code is what the launcher gets."""
    for writer in _pipes:
        os.write(writer, OVER)


def be_last() -> None:
    """Say that no other rank is left to be told: the launcher would make 0 of the signal of the last one."""
    for writer in _pipes:
        os.write(writer, LAST)


def is_guarded() -> bool:
    """Whether another process stands for this one."""
    return bool(_pipes)


def _stand_in_for(pid: int, reader: int) -> None:
    """Wait for the child and end as it did.  Does not return."""
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
    """Wait for the child; if the launcher goes first, which after a loss does not end all ranks, end both."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if os.getppid() != launcher:
            os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], LOOK_EVERY_S)
