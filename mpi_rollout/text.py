"""Text for messages: numbers of things, and what exceptions and the system say."""

import os
import re
import shlex
import traceback
from collections.abc import Sequence

# Characters of what user code says: a screen, of 25 lines of 80.  Nobody reads more, and a launcher takes minutes for
# megabytes.
MOST_SAID = 2_000
MOST_OF_STACK = 100_000


def counted(number: float, noun: str) -> str:
    """Return a number of things, such as "1 rank" or "2,000 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_seconds(seconds: float) -> str:
    """Return a time, such as "0.05 s", "66.7 s" or "3600 s"."""
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def aligned(rows: Sequence[Sequence[str]], num_left: int = 0) -> list[str]:
    """Lay out cells as columns: the first `num_left` flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if place < num_left else '>'}{width}" for place, width in enumerate(widths)]
    return ["  ".join(map(format, row, forms)).rstrip() for row in rows]


def printable(line: str) -> str:
    """Return a line as a terminal may show it: what is in a file, or what an env says, does not control it."""
    return "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in line)


def words_of(error: BaseException) -> str:
    """Return the type and message of an exception of user code; see `message_of`."""
    words = ": ".join(filter(None, (type(error).__name__, message_of(error))))
    asked = isinstance(error, EOFError) and words.endswith("EOF when reading a line")  # input() raises it.
    return f"{words} (it asked for input, and stdin is empty)" if asked else words


def message_of(error: BaseException) -> str:
    """Return the message of an exception of user code, as text that can be printed, sent and stored anywhere.

    Its `str()` may itself raise, or give characters that no encoding has.
    """
    try:
        return cut(str(error).encode(errors="backslashreplace").decode())
    except BaseException as second:
        return f"(its message cannot be read: str() raises {type(second).__name__})"


def cut(text: str, most: int = MOST_SAID) -> str:
    """Return what user code says, without its end where it is far too long."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text):,} characters)"


def traceback_of(error: BaseException) -> str:
    """Return what Python prints of an exception, as far as anybody reads it."""
    lines = (cut(line.removesuffix("\n")) for line in traceback.format_exception(error))
    whole = "".join(f"{line}\n" for line in lines)
    return whole if len(whole) <= MOST_OF_STACK else f"...\n{whole[-MOST_OF_STACK:]}"


def first_line(error: BaseException) -> str:
    """Return an error's message in one line; HDF5's have several, some have none."""
    return (str(error) or type(error).__name__).splitlines()[0]


def one_line(text: str, most: int = 80) -> str:
    """Return the begin of a text in one line: what NumPy says of an array has several."""
    return " ".join(text.split())[:most]


def shortened(text: str, most: int = 300) -> str:
    """Return a text for a message, without its end where it is long."""
    return text if len(text) <= most else f"{text[:most]} ..."


def pip_install(package: str) -> str:
    """Return the command that installs a package; "[video]" is an extra of this one.

    By its name, pip finds the package that is installed, whatever it was installed from, and leaves it as it is.  Where
    the program runs from its sources, these are named.
    """
    if package.startswith("["):
        sources = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        is_clone = os.path.isfile(os.path.join(sources, "pyproject.toml"))
        package = f"-e {shlex.quote(sources + package)}" if is_clone else f"'mpi_rollout{package}'"
    return f"pip install {package}"


def system_words(error: BaseException) -> str:
    """Return the system's words about a file; HDF5 puts much else around them, and leaves out the number at times."""
    match = re.search(r"errno = (\d+)", str(error))
    if match:
        return os.strerror(int(match[1]))
    return getattr(error, "strerror", None) or first_line(error)
