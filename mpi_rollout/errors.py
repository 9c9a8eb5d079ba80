"""The errors that end a run, each with the exit code that it ends with (sysexits.h)."""

import os
import re


class RolloutError(Exception):
    """A run cannot go on.  The message is one that its user can act on."""

    exit_code = 70


def first_line(error: BaseException) -> str:
    """An error's message in one line; HDF5's have several, some have none."""
    return (str(error) or type(error).__name__).splitlines()[0]


def system_words(error: BaseException) -> str:
    """What the system said of a file; HDF5 has that amid much else, and without its number at times."""
    found = re.search(r"errno = (\d+)", str(error))
    return os.strerror(int(found[1])) if found else first_line(error)


class UsageError(RolloutError):
    """An option has a value that cannot work."""

    exit_code = 64


class DataError(RolloutError):
    """Actions, observations or a file are not what their description says."""

    exit_code = 65


class EnvError(RolloutError):
    """An environment raised, or tried to leave the process."""

    exit_code = 70


class RankLost(RolloutError):
    """A rank is gone, where the run cannot go on without it."""


class StorageError(RolloutError):
    """The output cannot be written."""

    exit_code = 74


class Complete(RolloutError):
    """There is nothing to do any more."""

    exit_code = 0


class Interrupted(RolloutError):
    """Somebody asked the run to stop; what it committed is kept."""

    exit_code = 75


class LaunchError(RolloutError):
    """The ranks are not the world that was meant, or do not agree with each other."""

    exit_code = 78
