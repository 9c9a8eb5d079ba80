"""The errors that end a run, each with the exit code that it ends with (sysexits.h)."""

import os
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches


class Field(str):
    """The name of an option in a message, such as num_envs: `connect` has it as an argument, the command line not."""


class RolloutError(Exception):
    """A run cannot go on.  The message is one that its user can act on.

    It may be given in parts, of which those that are a `Field` are shown as each user types them.
    """

    exit_code = 70

    def __str__(self) -> str:
        return self.shown(str)

    def shown(self, name: Callable[[str], str]) -> str:
        """Return the message, with the options called as `name` calls them."""
        text = "".join(name(part) if isinstance(part, Field) else str(part) for part in self.args)
        return "\n".join(map(printable, text.split("\n")))


def counted(number: float, noun: str) -> str:
    """Return a number of things, such as "1 rank" or "2,000 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(line: str) -> str:
    """Return a line as a terminal may show it: what is in a file, or what an env says, does not control it."""
    return "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in line)


def words_of(error: BaseException) -> str:
    """Return the type and message of an exception of user code; see `message_of`."""
    words = ": ".join(filter(None, (type(error).__name__, message_of(error))))
    asked = isinstance(error, EOFError) and words.endswith("EOF when reading a line")  # By input().
    return f"{words} (it asked for input, and stdin is empty)" if asked else words


def message_of(error: BaseException) -> str:
    """Return the message of an exception of user code, as text that can be printed, sent and stored anywhere.

    Its `str()` may itself raise, or give characters that no encoding has.
    """
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except BaseException as second:
        return f"(its message cannot be read: str() raises {type(second).__name__})"


def first_line(error: BaseException) -> str:
    """Return an error's message in one line; HDF5's have several, some have none."""
    return (str(error) or type(error).__name__).splitlines()[0]


def shortened(text: str, most: int = 300) -> str:
    """Return a text for a message, without its end where it is long."""
    return text if len(text) <= most else f"{text[:most]} ..."


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the known one that is most like it, if one is."""
    matches = get_close_matches(word, list(names), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def system_words(error: BaseException) -> str:
    """Return what the system said of a file; HDF5 has that amid much else, and without its number at times."""
    match = re.search(r"errno = (\d+)", str(error))
    if match:
        return os.strerror(int(match[1]))
    return getattr(error, "strerror", None) or first_line(error)


class UsageError(RolloutError):
    """An option has a value that cannot work."""

    exit_code = 64


class DataError(RolloutError):
    """Actions, observations or a file are not what their description says."""

    exit_code = 65


class ContentError(DataError):
    """The content of a file is not what it should be.  The message does not name the file: who opened it does."""


class ActionError(DataError, ValueError):
    """Actions are not what their space says: also what Gymnasium's vector envs raise where their number is wrong."""


class EnvError(RolloutError):
    """An environment raised, or tried to leave the process."""

    exit_code = 70


@dataclass(frozen=True)
class Fault:
    """Why a rank failed, as text: exceptions of user code need not survive pickling."""

    message: str
    stack: str
    exit_code: int
    type_name: str
    step: int = -1

    @classmethod
    def of(cls, error: BaseException, place: str, step: int = -1) -> "Fault":
        """Describe an exception that was raised at this place, in a step of the envs if it is given."""
        is_own = isinstance(error, RolloutError)
        what = message_of(error) if is_own else words_of(error)
        if isinstance(error, SignalInterrupt):
            what = "interrupted amid its step"
        code = error.exit_code if isinstance(error, RolloutError) else EnvError.exit_code
        cause = error.__cause__ if is_own else error
        stack = (
            ""
            if cause is None or isinstance(error, DataError | UsageError)
            else "".join(traceback.format_exception(cause))
        )
        return cls(f"{place}: {what}", stack, code, type(error).__name__, step)


class RankError(RolloutError):
    """An env failed on some rank; `stack` is its traceback there."""

    def __init__(self, fault: Fault, num_faults: int):
        others = f" ({counted(num_faults - 1, 'more rank')} failed too)" if num_faults > 1 else ""
        super().__init__(fault.message + others)
        self.stack, self.exit_code, self.type_name = fault.stack, fault.exit_code, fault.type_name
        self.add_note(f"There:\n{self.stack}")


class PolicyError(RolloutError):
    """The policy raised, or tried to leave the process."""

    @property
    def stack(self) -> str:
        """The traceback of what it raised."""
        return "".join(traceback.format_exception(self.__cause__))


class RankLost(RolloutError):
    """A rank is gone, where the run cannot go on without it."""


class StorageError(RolloutError):
    """The output cannot be written."""

    exit_code = 74


class AlreadyComplete(RolloutError):
    """There is nothing to do any more."""

    exit_code = 0


class Interrupted(RolloutError):
    """Somebody asked the run to stop; what it committed is kept."""

    exit_code = 75


class SignalInterrupt(KeyboardInterrupt):
    """A signal ends what is under way.  Any other KeyboardInterrupt comes from an env or a policy, which has failed."""


class LaunchError(RolloutError):
    """The ranks are not the world that was meant, or do not agree with each other."""

    exit_code = 78
