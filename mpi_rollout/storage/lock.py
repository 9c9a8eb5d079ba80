"""One run at a time on one output: a lock that dies with its process."""

import fcntl
import os
import struct

from mpi_rollout.errors import StorageError, UsageError

FAR = 2**62  # The byte that is locked: far from any data.  HDF5's own locks are of another kind and stay as they are.


class Lock:
    """A lock on an unfinished file, held until `release` or the end of the process.

    An open file description lock: it is not lost when HDF5 closes the same file, and readers need not care.  A file
    system without locks gives none, and lets every run in; see `why_no_locks`.

    Parameters
    ----------
    descriptor
        Of the file at `path`; the lock owns it from now on.

    Raises
    ------
    UsageError
        Another run holds the lock, or has put another file in its place.
    """

    def __init__(self, path: str, descriptor: int):
        self._descriptor = descriptor
        try:
            acquire(descriptor)
        except (BlockingIOError, PermissionError) as error:
            self.release()
            raise refusal(path) from error
        except OSError:  # There are no locks; the root has said so.
            pass
        if not is_at(path, descriptor):
            self.release()
            raise refusal(path)

    def sync(self) -> None:
        """Have the file on the disk."""
        os.fsync(self._descriptor)

    def release(self) -> None:
        os.close(self._descriptor)


def refusal(path: str) -> UsageError:
    return UsageError(f"{path.removesuffix('.new')}: another run is writing it; wait for its end or use another --out")


def lock(path: str) -> Lock:
    """Lock an unfinished file for this process.

    Raises
    ------
    UsageError
        Another run holds it.
    StorageError
        It cannot be written to.
    """
    try:
        return Lock(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError as error:
        raise refusal(path) from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; move it away or use another --out") from error


def make_locked(path: str) -> Lock:
    """Make an empty file and lock it.

    Raises
    ------
    UsageError
        There is one, or another run has taken it meanwhile for one that a killed run has left.
    OSError
        It cannot be made.
    """
    try:
        return Lock(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError as error:
        raise refusal(path) from error


def acquire(descriptor: int) -> None:
    """Lock the file of a descriptor, at once or not at all.

    Raises
    ------
    BlockingIOError, PermissionError
        Another process holds the lock.
    OSError
        The file system has no locks.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request())


def _request() -> bytes:
    """The lock as the system's `struct flock`."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, FAR, 1, 0)


def is_locked(path: str) -> bool:
    """Tell whether a run holds the lock on an unfinished file, as far as this host can see; takes none itself."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        [kind] = struct.unpack_from("h", fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request()))
        return kind != fcntl.F_UNLCK
    except OSError:  # There are no locks.
        return False
    finally:
        os.close(descriptor)


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
