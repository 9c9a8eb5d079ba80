"""What a progress bar is drawn on: the terminal that a person looks at, or stderr.

Open MPI's launcher passes on whole lines only, and a progress bar is not a whole line.  So the bar goes to the terminal
itself, even where a launcher stands between.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from mpi_rollout.process.console import CLEAR_LINE, STDERR, encoding_of, say, write_all
from mpi_rollout.process.rank_variables import is_launcher

USUAL_COLUMNS = 80
TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


class Terminal:
    """A terminal to draw on: it never keeps the program waiting, and it may go away (`is_gone`)."""

    clear = CLEAR_LINE

    def __init__(self, descriptor: int):
        self._descriptor, self.is_gone, self.encoding = descriptor, False, encoding_of(STDERR)

    @property
    def columns(self) -> int:
        """Return the width of now: the terminal may have been resized."""
        with suppress(OSError):
            return os.get_terminal_size(self._descriptor).columns or USUAL_COLUMNS
        return USUAL_COLUMNS

    def write(self, text: str) -> None:
        """Show text, without what the terminal does not take at once, for example after Ctrl-S."""
        # Ranks run in the background of the launcher's terminal, where `stty tostop` would stop a process that writes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            write_all(self._descriptor, text.encode(self.encoding, "replace"), patience_s=0.0)
        except TimeoutError:
            pass
        except OSError:
            self.is_gone = True
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Stderr:
    """Stderr in place of a terminal, with the same attributes: for a progress bar that the user asked for."""

    columns, is_gone, clear = 80, False, f"\r{' ' * 80}\r"

    @property
    def encoding(self) -> str:
        return encoding_of(STDERR)

    def write(self, text: str) -> None:
        """Write text, without what finds no reader at once."""
        say(text, STDERR, patience_s=0.0)


def open_terminal() -> Terminal | None:
    """Open the terminal behind this process's stderr, which under mpirun is a pipe to the launcher.

    Return None without a terminal, where it cannot be opened (that of another user after `su`), or where it cannot
    erase what it shows.
    """
    path = None if os.environ.get("TERM") == "dumb" else find_terminal()
    if path is None:
        return None
    try:
        # Never wait for it, and do not let it become the terminal whose end would end this process.
        return Terminal(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return Terminal(STDERR) if os.isatty(STDERR) else None


def find_terminal() -> str | None:
    """Return the path that opens the terminal behind this process's stderr; None without one.

    Look at the parents too, as long as they are an MPI launcher or its helpers.
    """
    pid = "self"
    with suppress(OSError, ValueError):
        while True:
            # Not its name, which may mean another terminal in another container.
            path = Path(f"/proc/{pid}/fd/{STDERR}")
            if path.is_char_device() and os.readlink(path).startswith(TERMINALS):
                return str(path)
            pid = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]  # The parent.
            if not is_launcher(pid):
                return None
    return None
