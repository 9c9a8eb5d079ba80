"""A process that the launcher knows in place of its rank, so that the launcher learns of every way in which one ends.

`mpirun --with-ft ulfm` (5.0.11) tells the ranks that are left of one that a signal has ended, and of one that left
with code 0; of one that left with another code it tells nobody, and the others would wait for ever.  Simulators leave
so: `exit(1)` in a library, STOP in Fortran.  So the rank is a child of the process that was started, and that ends
itself by SIGKILL when the rank leaves before the run's end.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LOOK_EVERY_S = 0.5
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_pipes: list[int] = []  # To the process that stands in for this one.


def guard() -> None:
    """Go on in a child of this process, before MPI is started."""
    reader, writer = os.pipe()
    parent, pid = os.getpid(), os.fork()
    if pid:
        os.close(writer)
        _stand_in_for(pid, reader)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It has gone before it could take the child with it.
        os.kill(os.getpid(), signal.SIGKILL)
    _pipes.append(writer)


def release() -> None:
    """Say that the run is over, well or badly: from now on the exit code is what the launcher gets."""
    for writer in _pipes:
        os.write(writer, b".")


def _stand_in_for(pid: int, reader: int) -> None:
    """Wait for the child and end as it did.  Does not return."""
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: os.kill(pid, number))
    status = _wait_for(pid, os.getppid())
    os.set_blocking(reader, False)  # Processes that the rank has left behind may still hold the other end.
    try:
        is_over = bool(os.read(reader, 1))
    except BlockingIOError:
        is_over = False
    if not is_over or os.WIFSIGNALED(status):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(os.waitstatus_to_exitcode(status))


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
