"""Files of HDF5 while they are made: who is to blame for an error, and how they are closed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from mpi_rollout.errors import RolloutError, StorageError
from mpi_rollout.storage.ownership import free_space, is_full
from mpi_rollout.storage.untrusted import is_of_reading
from mpi_rollout.text import system_words

_unclosed: list[object] = []


class CanClose(Protocol):
    """What is closed at its end."""

    def close(self) -> None:
        """Close it."""


Closable = TypeVar("Closable", bound=CanClose)


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Blame the new file for what HDF5 or the system raise here; who reads raises errors of its own."""
    try:
        yield
    except RolloutError:
        raise
    except Exception as error:
        if not is_of_reading(error):
            raise
        # HDF5 does not always hand on why it could not write: a chunk that did not get to the disk is then missed.
        words = os.strerror(errno.ENOSPC) if is_full(path) else system_words(error)
        raise StorageError(f"cannot write {path}: {words} ({free_space(path)})") from error


@contextmanager
def closing_whole(file: Closable) -> Iterator[Closable]:
    """Close a new file when all is written.  After an error it stays open, and is kept from being collected.

    HDF5 may crash when it closes a file that it could not write: on a full disk it then tries to write the rest.
    """
    _unclosed.append(file)
    yield file
    file.close()
    _unclosed.remove(file)
