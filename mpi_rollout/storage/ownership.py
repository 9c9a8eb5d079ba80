"""Which run may write where: locks on unfinished files, and how a file gets its name, but never that of another run."""

import fcntl
import glob
import os
import re
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from shlex import quote

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import Option, StorageError, UsageError
from mpi_rollout.process.host import ANYWAY, format_bytes, is_any_size
from mpi_rollout.process.paths import located, open_regular, why_not_regular
from mpi_rollout.text import counted

FAR = 2**62  # The byte that is locked, far from any data.  HDF5's own locks are of another kind.
FULL_NBYTES = 2**16  # A file system with less is full.
TOLD_NBYTES = 100_000_000  # The user is told how large a larger file is.
_made_folders: list[str] = []


class Lock:
    """A lock on an unfinished file, held until `release` or the end of the process; it owns the descriptor.

    It is an open file description lock: it is not lost when HDF5 closes the same file, and does not concern readers.
    On a file system without locks there is none, and every run may write; see `why_no_locks`.  UsageError if another
    run holds the lock, or has put another file in its place.
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
        """Wait until the file is on the disk."""
        os.fsync(self._descriptor)

    def release(self) -> None:
        """Let other runs write the file, and the system have the room of one that is gone.  It may be called again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def refusal(path: str) -> UsageError:
    """Return the error for a file that belongs to another run."""
    name = path.removesuffix(".new")
    return UsageError(f"{name}: another run is writing it; wait for its end or use another ", Option("out"))


def lock(path: str) -> Lock:
    """Lock an unfinished file.

    UsageError if another run holds it, or if it is no file; StorageError if it cannot be written to.
    """
    check_is_file(path)
    try:
        return Lock(path, open_regular(path, os.O_RDWR))
    except FileNotFoundError as error:
        raise refusal(path) from error
    except OSError as error:
        words = f"cannot write {path}: {error.strerror}; move it away or use another "
        raise StorageError(words, Option("out")) from error


def make_locked(path: str) -> Lock:
    """Make an empty file and lock it; OSError if it cannot be made.

    UsageError if there is one, or if another run has taken the new one for what a killed run has left.
    """
    try:
        return Lock(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except FileExistsError as error:
        raise refusal(path) from error


def acquire(descriptor: int) -> None:
    """Lock the file of a descriptor, at once or not at all.

    BlockingIOError or PermissionError if another process holds the lock, another OSError if the file system has none.
    """
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request())


def _request() -> bytes:
    """Return the lock as the system's `struct flock`."""
    return struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, FAR, 1, 0)


def is_locked(path: str) -> bool:
    """Tell whether a run holds the lock on an unfinished file, as far as this host can see; takes none itself."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        [kind] = struct.unpack_from("h", fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _request()))
        return bool(kind != fcntl.F_UNLCK)
    except OSError:  # There are no locks.
        return False
    finally:
        os.close(descriptor)


def why_no_locks(descriptor: int) -> str:
    """Return the system's words if it has no locks for a file that nobody else has; "" if it has."""
    try:
        acquire(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_at(path: str, descriptor: int) -> bool:
    """Tell whether a path still names the file of a descriptor."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def why_no_file(path: str) -> str:
    """Return why there is nothing to read, and what may be meant; "" for a file that is not empty."""
    if os.path.isfile(path):
        return "" if os.path.getsize(path) else f"{path} is not a readable HDF5 file: it is empty"
    if os.path.lexists(path):
        return why_not_regular(path)
    is_part = path.endswith(".part")
    other = path.removesuffix(".part") if is_part else f"{path}.part"
    if os.path.isfile(other):
        state = "the complete file" if is_part else "which is not complete"
        return f"{path}: no such file; there is {quote(other)}, {state}: give that name"
    return why_not_regular(path)


def check_is_file(path: str) -> None:
    """Refuse, by UsageError, what is in the place of an unfinished file and is none; it is not opened."""
    if words := _instead_of_file(path):
        raise UsageError(f"{path} is {words}; move it away or use another ", Option("out"))


def _instead_of_file(path: str) -> str:
    """Return in words what stands in the place of a file; "" where a file is there, or nothing."""
    if os.path.isdir(path):
        return "a folder"
    if os.path.islink(path) and not os.path.exists(path):
        return f"a link to {os.readlink(path)}, which is not there"
    return "no file but a device, pipe or socket" if os.path.exists(path) and not os.path.isfile(path) else ""


def check_name(path: str) -> None:
    """Refuse an output whose name no file can have, or that exists and is no file, by UsageError with a better name."""
    if not path:
        raise UsageError(Option("out"), " must name a file, got ''")
    place = located(path)
    given, better, words = Option("out", path), Option("out"), ""
    if path == "-":
        better, words = Option("out", "run.h5"), " is no file, and HDF5 cannot be written to stdout; use "
    elif path.endswith("/") or os.path.isdir(place):
        given, better = Option("out"), Option("out", quote(os.path.join(path, "run.h5")))
        words = f" must name a file, got the folder {path}; use "
    elif path.endswith(".part"):
        better = Option("out", quote(path.removesuffix(".part")))
        words = ": .part is for files that are not complete; use "
    elif what := _instead_of_file(place):
        words = f" is {what}; use another "
    if words:
        raise UsageError(given, words, better)


def put_in_free_place(temporary: str, path: str) -> None:
    """Rename a file if there is none with the new name; if there is, remove it and raise UsageError."""
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except OSError:  # There is one, or the file system has no hard links.
        if os.path.lexists(path):
            os.unlink(temporary)
            raise refusal(path) from None
        os.rename(temporary, path)


def identity(path: str) -> tuple[int, int] | None:
    """Return a mark of the file that has a name, the same for all its names; None if there is none."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        return status.st_dev, status.st_ino
    return None


def give_name(temporary: str, path: str, replaces: tuple[int, int] | None = None) -> None:
    """Put a whole file on the disk, under its name, where it may replace the file with the `identity` `replaces`.

    FileExistsError if another file has that name.
    """
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    if identity(path) not in (None, replaces):
        raise FileExistsError(f"{path} has appeared meanwhile")
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def free_space(path: str) -> str:
    """Say how much room the file system of a file has left: that is most often wrong when it cannot be written."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB free in {folder}"
    except OSError as error:
        return f"{folder}: {error.strerror}"


def is_full(path: str) -> bool:
    """Tell whether the file system of a file has no room for a chunk."""
    try:
        return shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free < FULL_NBYTES
    except OSError:
        return False


def check_place(name: str, path: str, place: str = "", way_out: str = "") -> str:
    """Refuse a path where no file can be written, by StorageError; return why none can be locked, or "".

    `name` is the option that the path belongs to, or "".  `place` is where it is, if that is not seen from the current
    folder.
    """
    named = Option(name, path) if name else path
    folder = os.path.dirname(place or path) or "."
    if not os.path.isdir(folder):
        is_file = os.path.lexists(folder)
        make_it = f"mkdir -p {quote(os.path.dirname(path))}"
        advice = ("that is a file; use another ", Option(name) if name else "name") if is_file else (make_it,)
        raise StorageError(named, f": there is no folder {folder}; ", *advice)
    probe = temporary_path(place or path, "probe")  # Access rights do not tell: a file system can be read-only.
    try:
        descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        why_not = why_no_locks(descriptor)
        os.close(descriptor)
        os.unlink(probe)
        return why_not
    except OSError as error:
        words = f": cannot write to {folder}: {error.strerror}{way_out}"
        raise StorageError(named, words) from error


def make_folder(path: str) -> None:
    """Make a folder for an output, if it can be made; see `remove_empty_folders`."""
    with suppress(OSError):
        os.mkdir(path)
        _made_folders.append(path)


def remove_empty_folders() -> None:
    """Remove the folders that this process has made and that are empty."""
    while _made_folders:
        with suppress(OSError):
            os.rmdir(_made_folders.pop())


@contextmanager
def removed(path: str) -> Iterator[None]:
    """Remove a temporary file at the end, if there is one and the file system can be written."""
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)


def temporary_path(path: str, what: str) -> str:
    """Name a file or folder of this process beside `path`; remove those that killed processes of this host left.

    Those of processes on other hosts stay, because this host cannot tell whether these live.
    """
    host = os.uname().nodename
    for left in glob.glob(f"{glob.escape(path)}.{what}-{glob.escape(host)}-*"):
        pid = re.search(r"-(\d+)$", left)
        if pid is not None and not os.path.exists(f"/proc/{pid[1]}"):
            with suppress(OSError):
                shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)
    return f"{path}.{what}-{host}-{os.getpid()}"


def check_free_space(config: RolloutConfig, row_nbytes: int, old_nbytes: int = 0, copied_nbytes: int = 0) -> str:
    """Refuse a file that there is no room for, by StorageError; return what to tell the user, "" for a small file.

    The size of a compressed one, or of so many episodes, is not known before: it is told, and not refused.
    A step of all envs has `row_nbytes`, the unfinished file that is continued `old_nbytes`.  Of these, `copied_nbytes`
    are on the disk twice until the new file has all.
    """
    if not config.trajectories:
        return ""
    nbytes, is_bound = row_nbytes * config.num_steps, config.compression != "none" or config.num_episodes is not None
    folder = os.path.dirname(config.path)
    free = shutil.disk_usage(folder).free
    data = f"{counted(config.num_envs, 'env')} x {counted(config.num_steps, 'step')}"
    size = f"{data} take {'at most' if is_bound else 'about'} {format_bytes(nbytes)} in {config.out}"
    needed = max(nbytes - old_nbytes, min(copied_nbytes, nbytes))
    if needed > free and not is_bound and not is_any_size():
        ways_out = f"use fewer steps or envs, another --out, --compression gzip, {ANYWAY}"
        raise StorageError(f"{size}, and {folder} has {format_bytes(free)} free; {ways_out}")
    return f"{size} ({format_bytes(free)} free there)" if nbytes >= TOLD_NBYTES else ""
