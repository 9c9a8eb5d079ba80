"""Where a study is done: a folder beside its file that only one process has; when it began, and what it tells."""

import fcntl
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from mpi_rollout.errors import StorageError, UsageError


def job_folder(out: str) -> Path:
    """The folder of the jobs of the study in the file `out`."""
    return Path(f"{out}.job")


@contextmanager
def claimed(out: str) -> Iterator[Path]:
    """A folder for the jobs' own files, beside the study's: empty, and removed in the end.

    What a study that was killed left in it is removed; but not on a file system without locks, where it may be of one
    that goes on.

    Raises
    ------
    UsageError
        Another process does this study.
    StorageError
        It cannot be made.
    """
    folder = job_folder(out)
    try:
        descriptor, is_locked = _open_locked(folder)
    except BlockingIOError as error:
        raise UsageError(
            f"--out {out}: another process does this study; wait for its end or use another --out"
        ) from error
    except OSError as error:
        raise StorageError(f"--out {out}: cannot make the folder {folder}: {error.strerror}") from error
    if is_locked:
        _empty(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _open_locked(folder: Path) -> tuple[int, bool]:
    """A descriptor of the folder, made if need be, and whether it is locked; BlockingIOError if somebody else's."""
    while True:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # A file system without locks.
            return descriptor, False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor, True
        os.close(descriptor)  # Who had it before has removed it, between our two calls.


def _empty(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            with suppress(OSError):  # Nobody's loss, unless it is in the way: then who finds it says so.
                each.unlink()


def origin() -> dict[str, str]:
    """command, host, started: of a study that begins now."""
    command = shlex.join(["python", "-m", "mpi_rollout", *sys.argv[1:]])
    return {"command": command, "host": os.uname().nodename, "started": now()}


def now() -> str:
    """The time, as ISO 8601 in UTC with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def tell(text: str) -> None:
    """Say how far it is, on stderr."""
    sys.stderr.write(f"mpi_rollout: {text}\n")
    sys.stderr.flush()
