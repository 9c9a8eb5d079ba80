"""What the program prints for its user, on stdout and stderr.

A run does not depend on its readers: `say` never fails and never waits forever.  Envs may close or replace `sys.stdout`
and `sys.stderr`, or close their descriptors.  What is printed here goes to the outputs that the command began with.
"""

import io
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from textwrap import TextWrapper
from typing import TextIO

from mpi_rollout.errors import StorageError
from mpi_rollout.process.start import silent_terminal
from mpi_rollout.text import system_words

STDIN, STDOUT, STDERR = 0, 1, 2
PATIENCE_S = 10.0  # How long to wait for a reader that does not read.
PIECE_NBYTES = 512  # A pipe that is ready takes this many without waiting (POSIX's least PIPE_BUF).
CLEAR_LINE = "\r\x1b[K"
INDENT = 14  # The width of the names before what commands say of a file.

_held: dict[int, int | TextIO] = {}  # Copies of the descriptors; or the stream that replaced one, as in a notebook.
_start = ""  # What each message on stderr begins with.


def hold() -> None:
    """Keep stdout and stderr as they are when a command begins; characters that they cannot encode are escaped."""
    while _held:
        _, output = _held.popitem()
        if isinstance(output, int):
            os.close(output)
    take_free_descriptors()
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)  # None: it was closed from the start.
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
    for number, stream in ((STDOUT, sys.stdout), (STDERR, sys.stderr)):
        _held[number] = os.dup(number) if _descriptor_of(stream) == number else stream
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # It has no descriptor, or was closed.
        return None


def take_free_descriptors() -> None:
    """Open /dev/null in place of stdin, stdout and stderr where an env has closed these.

    Without this, the next file to be opened would get the number, and everything that libraries print.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number.


@contextmanager
def stdout_apart() -> Iterator[None]:
    """Send what the code of others prints on stdout to stderr: stdout then has nothing but the text of `write`."""
    kept, before = os.dup(STDOUT), sys.stdout
    divert_stdout()
    try:
        yield
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        os.dup2(kept, STDOUT)
        os.close(kept)
        sys.stdout = before


def divert_stdout() -> None:
    """Send to stderr what anyone prints on stdout from now on: Python, C code, programs that are started."""
    with suppress(Exception):
        sys.stdout.flush()
    os.dup2(STDERR, STDOUT)
    if _descriptor_of(sys.stdout) != STDOUT:
        sys.stdout = sys.stderr


@contextmanager
def without_stdin() -> Iterator[None]:
    """Give an empty stdin to the code of others that asks for input: there may be nobody to answer."""
    take_free_descriptors()
    kept, before = os.dup(STDIN), sys.stdin  # Kept open, so that a launcher can still write to it.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), STDIN)
        sys.stdin = nothing
        try:
            yield
        finally:
            os.dup2(kept, STDIN)
            os.close(kept)
            sys.stdin = before


def name_of_stop(number: int) -> str:
    """Return the name of a signal that asks to stop; let messages go to the terminal if that would not show them."""
    name = signal.Signals(number).name
    if terminal := silent_terminal(number):
        _held[STDERR] = terminal
        name += ", which mpirun sends after Ctrl-C"
    return name


def share_line(is_shared: bool) -> None:
    """Note whether a progress bar is drawn where our stderr goes: messages then replace its line."""
    global _start
    _start = CLEAR_LINE if is_shared else ""


def say(text: str, number: int = STDERR, patience_s: float = PATIENCE_S) -> None:
    """Write text to stderr or stdout as far as possible; never raise."""
    with suppress(OSError):
        write((_start if number == STDERR else "") + text, number, patience_s)


def write(text: str, number: int, patience_s: float = PATIENCE_S) -> None:
    """Write text to stdout or stderr, after what was printed there before; OSError if it cannot be written.

    Characters that the encoding does not have are escaped.
    """
    stream = sys.__stdout__ if number == STDOUT else sys.__stderr__
    if stream is None and number not in _held:
        return
    output = _held.get(number, number)
    if getattr(output, "closed", False):
        output = number
    with suppress(Exception):
        (sys.stdout if number == STDOUT else sys.stderr).flush()
    if isinstance(output, int):
        write_all(output, text.encode(encoding_of(number), "backslashreplace"), patience_s)
        return
    try:
        print(text, end="", file=output, flush=True)
    except ValueError as error:
        raise OSError(f"it is closed ({error})") from error


def show(lines: list[str]) -> None:
    """Print the lines that a command gives; StorageError if they cannot be written, but by a reader that has gone."""
    try:
        write("\n".join([*lines, ""]), STDOUT, inf)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write to stdout: {system_words(error)}") from error


def fitted(lines: Sequence[str], indent: int = INDENT) -> list[str]:
    """Break lines between words where stdout is a terminal that is too narrow for them; what follows is indented."""
    try:
        columns = os.get_terminal_size(STDOUT).columns
    except OSError:  # It is none: programs read whole lines.
        return list(lines)
    if columns <= 2 * indent:
        return list(lines)
    words = TextWrapper(columns, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in (words.wrap(line) if len(line) > columns else [line])]


def encoding_of(number: int) -> str:
    """Return the encoding of stdout or stderr as they were when Python started."""
    return getattr(sys.__stdout__ if number == STDOUT else sys.__stderr__, "encoding", None) or "utf-8"


def write_all(descriptor: int, data: bytes, patience_s: float) -> None:
    """Write piece by piece; TimeoutError if the reader takes nothing for so long."""
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    while data:
        if not ready.poll(None if patience_s == inf else 1000 * patience_s):
            raise TimeoutError(f"nobody has read for {patience_s:g} s")
        with suppress(BlockingIOError):
            data = data[os.write(descriptor, data[:PIECE_NBYTES]) :]


def settle() -> None:
    """Flush stdout and stderr at the end of the program, so that Python's own last flush cannot fail.

    Such a failure would be printed as an ignored exception, and would end the program with exit code 120.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # The rest of its buffer is dropped.
            original = getattr(sys, f"__{name}__")
            setattr(sys, name, original)
            with suppress(Exception):
                os.dup2(os.open(os.devnull, os.O_WRONLY), original.fileno())
