"""The terminal that a person sees the program on, also where a launcher stands between.

Open MPI's launcher passes on whole lines only, and a progress bar is none.  So the bar goes to the terminal itself.
"""

import os
import select
import signal
import stat
from contextlib import suppress

from mpi_rollout.process.console import CLEAR_LINE, STDERR, encoding_of

USUAL_COLUMNS = 80
# What stands between under mpirun; SLURM's are not of the user, and have no terminal.
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "hydra")


class Terminal:
    """A terminal for looks only: it never keeps the program waiting, and may go away.

    Attributes
    ----------
    is_gone
        It can be written to no more.
    encoding
        Of what it shows.
    clear
        What clears the line that the cursor is in.
    """

    clear = CLEAR_LINE

    def __init__(self, descriptor: int):
        self._descriptor, self.is_gone, self.encoding = descriptor, False, encoding_of(STDERR)

    @property
    def columns(self) -> int:
        """Its width now: it may have been resized."""
        with suppress(OSError):
            return os.get_terminal_size(self._descriptor).columns or USUAL_COLUMNS
        return USUAL_COLUMNS

    def write(self, text: str) -> None:
        """Show text; what it does not take at once, as after Ctrl-S, is left out."""
        # Ranks are in the background of the launcher's terminal: there `stty tostop` would stop whoever writes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            if _is_ready(self._descriptor):
                os.write(self._descriptor, text.encode(self.encoding, "replace"))
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def flush(self) -> None:
        """Nothing is kept back."""


def _is_ready(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def open_terminal() -> Terminal | None:
    """Open the terminal behind this process's stderr, which under mpirun is a pipe to the launcher; None without one.

    Also None where it cannot be opened, such as that of another user after `su`, or cannot erase what it shows.
    """
    path = None if os.environ.get("TERM") == "dumb" else find_terminal()
    if path is None:
        return None
    try:
        # Not to be waited for, whatever it is; and it does not become the terminal that ends this process.
        return Terminal(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return Terminal(STDERR) if os.isatty(STDERR) else None


def find_terminal() -> str | None:
    """The path by which the terminal behind this process's stderr can be opened; None without one.

    Goes up the parents as long as they are an MPI launcher or its helpers.
    """
    pid = "self"
    with suppress(OSError, ValueError):
        while True:
            path = f"/proc/{pid}/fd/{STDERR}"  # Not its name, which may be of another one in another container.
            if _is_terminal(path):
                return path
            pid = _parent(pid)
            if not _process_name(pid).startswith(LAUNCHERS):
                return None
    return None


def _is_terminal(path: str) -> bool:
    """Whether it is one, without opening it."""
    found = os.stat(path)
    return stat.S_ISCHR(found.st_mode) and os.readlink(path).startswith(("/dev/pts/", "/dev/tty", "/dev/console"))


def _process_name(pid: str) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def _parent(pid: str) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[1]
