"""What the program says to its user, on stdout and stderr.

A run does not depend on who listens: saying something never fails, and never waits for ever.  Envs may close or replace
`sys.stdout` and `sys.stderr`, or close their descriptors; what is said here goes to those that the command began with.
"""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import TextIO

from mpi_rollout.errors import StorageError, system_words

STDIN, STDOUT, STDERR = 0, 1, 2
PATIENCE_S = 10.0  # With a reader that does not read.
PIECE_NBYTES = 512  # A pipe that is ready takes as many without waiting (POSIX's least PIPE_BUF).

CLEAR_LINE = "\r\x1b[K"

_held: dict[int, int | TextIO] = {}  # Copies of the descriptors; of what stood for one, as in a notebook, the stream.
_start = ""  # Of what is said on stderr.


def hold() -> None:
    """Keep stdout and stderr as they are now, and have no character that they cannot take.

    To be called when a command begins, before any code of users runs.
    """
    while _held:
        _, output = _held.popitem()
        if isinstance(output, int):
            os.close(output)
    take_free_descriptors()
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)  # None: it was closed from the begin.
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
    for number, stream in ((STDOUT, sys.stdout), (STDERR, sys.stderr)):
        _held[number] = os.dup(number) if _descriptor_of(stream) == number else stream
        with suppress(OSError, AttributeError):
            stream.reconfigure(errors="backslashreplace")


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # It has none, or was closed.
        return None


def take_free_descriptors() -> None:
    """Open /dev/null as stdin, stdout and stderr where an env has closed these.

    Else the next file to be opened would have the number, and everything that libraries print would go into it.
    """
    for number in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number.


@contextmanager
def stdout_apart() -> Iterator[None]:
    """Inside, what code of others prints on stdout goes to stderr: on stdout is what `write` says, and nothing else."""
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
    """Have what is printed on stdout from now on go to stderr, also by C code and by programs that are started."""
    with suppress(Exception):
        sys.stdout.flush()
    os.dup2(STDERR, STDOUT)
    if _descriptor_of(sys.stdout) != STDOUT:
        sys.stdout = sys.stderr


@contextmanager
def without_stdin() -> Iterator[None]:
    """Inside, code of others that asks for input finds the end of it: nobody might be there to answer."""
    take_free_descriptors()
    kept, before = os.dup(STDIN), sys.stdin  # Kept open, so that whoever writes there, as a launcher does, still can.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), STDIN)
        sys.stdin = nothing
        try:
            yield
        finally:
            os.dup2(kept, STDIN)
            os.close(kept)
            sys.stdin = before


def share_line(is_shared: bool) -> None:
    """Say whether somebody shows a progress bar where our stderr goes: what is said begins in its place then."""
    global _start
    _start = CLEAR_LINE if is_shared else ""


def say(text: str, number: int = STDERR, patience_s: float = PATIENCE_S) -> None:
    """Write text to stderr or stdout, as far as possible."""
    with suppress(OSError):
        write((_start if number == STDERR else "") + text, number, patience_s)


def write(text: str, number: int, patience_s: float = PATIENCE_S) -> None:
    """Write text to stdout or stderr, after what was printed there; characters outside its encoding as escapes.

    Raises
    ------
    OSError
        It cannot be written.
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
        _write_all(output, text.encode(encoding_of(number), "backslashreplace"), patience_s)
        return
    try:
        print(text, end="", file=output, flush=True)
    except ValueError as error:
        raise OSError(f"it is closed ({error})") from error


def show(lines: list[str]) -> None:
    """Print what a command has to say.

    Raises
    ------
    StorageError
        It cannot be written; but that the reader has gone, as `head` does, is no failure.
    """
    try:
        write("\n".join([*lines, ""]), STDOUT, inf)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write to stdout: {system_words(error)}") from error


def encoding_of(number: int) -> str:
    """The encoding of stdout or stderr as they were when Python began."""
    return getattr(sys.__stdout__ if number == STDOUT else sys.__stderr__, "encoding", None) or "utf-8"


def _write_all(descriptor: int, data: bytes, patience_s: float) -> None:
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    while data:
        if not ready.poll(None if patience_s == inf else 1000 * patience_s):
            raise TimeoutError(f"nobody has read for {patience_s:g} s")
        with suppress(BlockingIOError):
            data = data[os.write(descriptor, data[:PIECE_NBYTES]) :]


def settle() -> None:
    """At the end of the program: whatever became of stdout, Python's own last flush of it must not fail.

    It would be told as an ignored exception, and as exit code 120.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # What is left in its buffer goes nowhere.
            original = getattr(sys, f"__{name}__")
            setattr(sys, name, original)
            with suppress(Exception):
                os.dup2(os.open(os.devnull, os.O_WRONLY), original.fileno())


class Stderr:
    """Stderr in place of a terminal, see there: for a progress bar that is asked for where there is none."""

    columns, is_gone, clear = 80, False, f"\r{' ' * 80}\r"

    @property
    def encoding(self) -> str:
        return encoding_of(STDERR)

    def write(self, text: str) -> None:
        """Write text; what finds no reader at once is left out."""
        say(text, STDERR, patience_s=0.0)

    def flush(self) -> None:
        """Nothing is kept back."""
