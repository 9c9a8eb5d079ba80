"""One run at a time on one output: a lock that dies with its process."""

import fcntl
import os
import struct

from mpi_rollout.errors import StorageError, UsageError

FAR = 2**62  # The byte that is locked: far from any data.  HDF5's own locks are of another kind and stay as they are.


def lock(path: str, made: int | None = None) -> int:
    """Lock an unfinished file for this process; return the descriptor that holds the lock until it is closed.

    Parameters
    ----------
    made
        A descriptor of the file, if this process has just made it: another may have removed it before it was locked.

    An open file description lock: it is not lost when HDF5 closes the same file, and readers need not care.  A file
    system without locks gives none, and lets every run in; see `why_no_locks`.

    Raises
    ------
    UsageError
        Another run holds it.
    StorageError
        It cannot be written to.
    """
    refusal = UsageError(f"{path}: another run is writing it; wait for its end or use another --out")
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError as error:
        raise refusal from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; move it away or use another --out") from error
    try:
        acquire(descriptor)
    except (BlockingIOError, PermissionError) as error:
        os.close(descriptor)
        raise refusal from error
    except OSError:  # There are none; the root has told.
        pass
    if not is_at(path, descriptor if made is None else made):
        os.close(descriptor)
        raise refusal
    return descriptor


def acquire(descriptor: int) -> None:
    """Lock the file of a descriptor, at once or not at all.

    Raises
    ------
    BlockingIOError, PermissionError
        Another process holds the lock.
    OSError
        The file system has no locks.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, FAR, 1, 0))


def why_no_locks(descriptor: int) -> str:
    """What the system says where it has no locks for a file that nobody else has; "" where it has."""
    try:
        acquire(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_at(path: str, descriptor: int) -> bool:
    """Tell whether a descriptor's file is still what a path names."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
