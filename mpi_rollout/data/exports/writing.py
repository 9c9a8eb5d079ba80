"""What all exports share: who is to blame for an error while a file is written, and whether there is room for it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from mpi_rollout.core.host import ANYWAY, format_bytes, is_any_size
from mpi_rollout.errors import RolloutError, StorageError, system_words
from mpi_rollout.storage.ownership import free_space
from mpi_rollout.storage.untrusted import is_of_reading

COMPRESSIONS = ("none", "gzip")


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
        raise StorageError(f"cannot write {path}: {system_words(error)} ({free_space(path)})") from error


def check_room(folder: str, nbytes: int, compression: str) -> None:
    """Raise StorageError if a file system has not as much room; the size of a compressed file is not known before."""
    free = shutil.disk_usage(folder).free
    if compression == "none" and nbytes > free and not is_any_size():
        raise StorageError(
            f"the export takes about {format_bytes(nbytes)}, and {os.path.abspath(folder)} has {format_bytes(free)} "
            f"free; use --compression gzip, another place, {ANYWAY}"
        )
