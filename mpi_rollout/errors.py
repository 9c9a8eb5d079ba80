"""The errors that end a run, each with the exit code that it ends with (sysexits.h)."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, TypeVar

from mpi_rollout.text import MOST_SAID, counted, cut, message_of, printable, traceback_of, words_of

Error = TypeVar("Error", bound=BaseException)
Own = TypeVar("Own", bound="RolloutError")
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Option(NamedTuple):
    """An option in a message, with its value if that is said too: `--num-envs 3` in a shell, num_envs=3 in Python.

    A dict is shown so that it can be pasted: `--store-infos '{"lives": "int"}'` in a shell, infos={"lives": "int"}.
    """

    name: str
    value: object = None


def as_flag(option: Option) -> str:
    """Return an option as it is typed on the command line."""
    words = "--" + option.name.replace("_", "-")
    value = shlex.quote(json.dumps(option.value)) if isinstance(option.value, dict) else option.value
    return words if value is None else f"{words} {value}"


def as_argument(option: Option) -> str:
    """Return an option as it is given to `connect`."""
    name = {"out": "record", "store_infos": "infos", "env_factory": "env"}.get(option.name, option.name)
    value = json.dumps(option.value) if isinstance(option.value, dict) else option.value
    return name if value is None else f"{name}={value}"


def spelled(parts: Iterable[object], spell: Callable[[Option], str]) -> str:
    """Return the message of some parts, with its options in the words of `as_flag` or `as_argument`."""
    text = "".join(spell(part) if isinstance(part, Option) else str(part) for part in parts)
    return "\n".join(map(printable, cut(text, 2 * MOST_SAID).split("\n")))


class RolloutError(Exception):
    """A run cannot go on.  The message is one that its user can act on.

    It may be given in parts, of which those that are an `Option` are shown as each user types them.
    """

    exit_code = 70
    shows_cause = False

    @property
    def stack(self) -> str:
        """The traceback of what user code raised; "" where the message says it all."""
        return stack_of(self.__cause__) if self.shows_cause and self.__cause__ is not None else ""

    def __str__(self) -> str:
        return self.shown(as_argument)

    def shown(self, spell: Callable[[Option], str]) -> str:
        """Return the message; see `spelled`."""
        return spelled(self.args, spell)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle it as an error of its own class, without that of its cause; see `caused_by`."""
        own = next(kind for kind in type(self).__mro__ if _is_found(kind))
        return _restored, (own, self.args, vars(self))


def _is_found(kind: type) -> bool:
    """Tell whether a class is where its name says; a twin that `caused_by` made is not."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _restored(kind: type[Own], args: tuple[object, ...], state: dict[str, object]) -> Own:
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


class UsageError(RolloutError):
    """An option has a value that cannot work."""

    exit_code = 64


class SameEnvError(UsageError, ValueError):
    """Two envs are one object: a ValueError for Stable-Baselines3's DummyVecEnv as well."""


class DataError(RolloutError):
    """Actions, observations or a file are not what their description says."""

    exit_code = 65


class NotContinuedError(DataError):
    """What an earlier start of the run has written is damaged; the message has the way out."""


class ForeignFileError(DataError):
    """A file has no run that this program reads: it is missing, empty, of another program or another version."""


class NewerFormatError(DataError):
    """A file is in a format of HDF5 that this HDF5 does not know."""


class ContentError(DataError):
    """The content of a file is not what it should be.  The message does not name the file: who opened it does."""


class ActionError(DataError, ValueError):
    """Actions are not what their space says: also what Gymnasium's vector envs raise where their number is wrong."""


class EnvError(RolloutError):
    """An environment raised, or tried to leave the process."""

    exit_code = 70
    shows_cause = True


@dataclass(frozen=True)
class Raised:
    """What user code raised, as it goes to other ranks: exceptions need not survive pickling.

    `stack` is its traceback there.
    """

    module: str
    name: str
    message: str
    stack: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        kind, stack = type(error), "" if error.__traceback__ is None else stack_of(error)
        return cls(kind.__module__, kind.__qualname__, message_of(error), stack)

    def again(self) -> Exception:
        """Return a copy, which `except` clauses for its class catch if a module that is loaded here has that class."""
        body = {"__module__": self.module, "__qualname__": self.name, "__str__": lambda _: self.message}
        copy = _blank((self._kind(),), body)
        copy = _blank((Exception,), body) if copy is None else copy
        assert copy is not None, "anybody can derive from Exception"
        copy.args = (self.message,)
        copy.stack_there = self.stack  # type: ignore[attr-defined]
        if self.stack:
            copy.add_note(f"There:\n{self.stack.rstrip()}")
        return copy

    def _kind(self) -> type[Exception]:
        """Return its class.  Nothing is imported, and no code runs."""
        kind: object = sys.modules.get(self.module)
        for name in self.name.split("."):
            kind = getattr(kind, "__dict__", {}).get(name)
        return kind if isinstance(kind, type) and _can_be_derived(kind) else Exception


def caused_by(error: Own, cause: BaseException | None) -> Own:
    """Return an error with a cause.  `except` clauses for the cause's class catch it too, as without this program."""
    kind = type(cause)
    if _can_be_derived(kind) and not isinstance(error, kind):
        body: dict[str, object] = {"__module__": type(error).__module__, "__qualname__": type(error).__qualname__}
        twin = _blank((type(error), kind), body)
        if isinstance(twin, type(error)):
            twin.args = error.args
            vars(twin).update(vars(error))
            error = twin
    error.__cause__ = cause
    return error


def _can_be_derived(kind: type) -> TypeGuard[type[Exception]]:
    """Tell whether errors may be of this class too.  Of a SyntaxError, Python shows its fields, and no message."""
    return issubclass(kind, Exception) and not issubclass(kind, RolloutError | SyntaxError)


def _blank(bases: tuple[type[Exception], ...], body: dict[str, object]) -> Exception | None:
    """Return an exception of a new class, without a call of a constructor; None if the bases do not allow it."""
    try:
        kind: Any = type(str(body["__qualname__"]), bases, body)
        builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        copy: Exception = builtin.__new__(kind)
        return copy
    except Exception:  # Two fixed layouts, or the class of somebody who wants no other one derived from it.
        return None


def stack_of(error: BaseException) -> str:
    """Return the traceback of what user code raised, here or on another rank."""
    return getattr(error, "stack_there", "") or traceback_of(error)


def is_ours(path: str) -> bool:
    """Tell whether a frame's file belongs to this program, or is a name that `faults.named` gave it."""
    return path.startswith(("<rank ", PACKAGE))


def without_our_frames(error: Error, keeps_all: bool = True) -> Error:
    """Leave out of a traceback how this program called the code of others.

    `keeps_all`: where there is no such code, keep the whole traceback.
    """
    frames = error.__traceback__
    while frames is not None and _is_calling(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return error if frames is None and keeps_all else error.with_traceback(frames)


def _is_calling(path: str) -> bool:
    return is_ours(path) or path == contextlib.__file__  # Decorators of `contextlib` are around our functions.


@dataclass(frozen=True)
class Fault:
    """Why a rank failed, in the parts of a `RolloutError`, and as what user code raised, if no part says it."""

    parts: tuple[object, ...]
    exit_code: int
    raised: Raised | None
    step: int = -1

    @classmethod
    def of(cls, error: BaseException, place: str, step: int = -1) -> "Fault":
        """Describe an exception that was raised at this place, in a step of the envs if it is given."""
        what = error.args if isinstance(error, RolloutError) else (words_of(error),)
        if isinstance(error, SignalInterrupt):
            what = ("interrupted during its step",)
        code = error.exit_code if isinstance(error, RolloutError) else EnvError.exit_code
        cause = cause_of(error)
        return cls((f"{place}: ", *what), code, None if cause is None else Raised.of(cause), step)

    @property
    def stack(self) -> str:
        return "" if self.raised is None else self.raised.stack


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception of user code, if the message of the error does not say it all."""
    cause = error.__cause__ if isinstance(error, RolloutError) else error
    return None if cause is None or isinstance(error, DataError | UsageError) else without_our_frames(cause)


class RankError(RolloutError):
    """An env failed on some rank; `stack` is its traceback there."""

    shows_cause = True

    def __init__(self, fault: Fault, num_faults: int):
        others = f" ({counted(num_faults - 1, 'more rank')} failed too)" if num_faults > 1 else ""
        super().__init__(*fault.parts, others)
        self.exit_code = fault.exit_code


class PolicyError(RolloutError):
    """The policy raised, or tried to leave the process."""

    shows_cause = True


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
