"""Where a study is done: on which machine, by which program, and in which folder, which it has for itself."""

import fcntl
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpi_rollout.config import versions
from mpi_rollout.core.clock import utc_now
from mpi_rollout.errors import StorageError, UsageError
from mpi_rollout.process.host import num_cores_of_host, num_usable_cores
from mpi_rollout.text import counted

PACKAGE = Path(__file__).parent.parent

Facts = dict[str, str | int]


def machine_facts() -> Facts:
    """Return by name what must stay the same for samples to belong to one study: facts of machine and program."""
    return {
        "cpu_model": cpu_model(),
        "num_cores": _num_cores(),
        "versions": ", ".join(f"{name} {version}" for name, version in _versions().items()),
        "commit": commit(),
    }


def _num_cores() -> int:
    """Return how many cores of this machine are ours.

    In a batch job these are all cores of the node: a job is allotted another number of them each time, which is no
    fact of the machine.  The ranks themselves report the cores that they may use.
    """
    return num_cores_of_host() if "SLURM_JOB_ID" in os.environ else num_usable_cores()


def _versions() -> dict[str, str]:
    """Return the versions of packages, that of mpi4py without importing it, which would start MPI."""
    found = versions()
    with suppress(importlib.metadata.PackageNotFoundError):
        found |= {"mpi4py": importlib.metadata.version("mpi4py")}
    return found


def cpu_model() -> str:
    """Return the processor's name as the kernel has it; psutil does not know it."""
    match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return match.group(1).strip() if match else platform.machine()


def commit() -> str:
    """Return the last commit that changed this package, with `-dirty` if files changed since; empty without git."""
    last = _git("log", "-1", "--format=%h", "--", ".")
    return last + "-dirty" if last and _git("status", "--porcelain", "--", ".") else last


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def place_and_time(host: str, facts: Facts, libraries: Iterable[str], started: str) -> str:
    """Return host, processor, cores, MPI libraries, each once, and the day, in words."""
    return ", ".join([machine_words(host, facts), *dict.fromkeys(filter(None, libraries)), started[:10]])


def machine_words(host: str, facts: Facts) -> str:
    """Return host, processor and number of cores, in words."""
    return f"{host} ({facts['cpu_model']}, {counted(int(facts['num_cores']), 'core')})"


def job_folder(out: str) -> Path:
    """Return the folder of the jobs of the study in the file `out`."""
    return Path(f"{out}.job")


@contextmanager
def claimed(out: str) -> Iterator[Path]:
    """Make an empty folder for the jobs' own files beside the study's, and remove it in the end.

    What a killed study left in it is removed first; but not on a file system without locks, where these may be the
    files of a study that is still running.  UsageError if another process does this study.
    """
    folder = job_folder(out)
    try:
        descriptor, is_locked = _open_locked(folder)
    except BlockingIOError as error:
        message = f"--out {out}: another process does this study; wait for its end or use another --out"
        raise UsageError(message) from error
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
    """Open and lock the folder; return its descriptor and whether it is locked.  BlockingIOError if another has it."""
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
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # It harms nobody, unless it is in the way: then whoever meets it says so.
                path.unlink()


def origin() -> dict[str, str]:
    """Return command, host and time of a study that begins now, by name."""
    command = shlex.join(["python", "-m", "mpi_rollout", *sys.argv[1:]])
    return {"command": command, "host": os.uname().nodename, "started": utc_now()}


def tell(text: str) -> None:
    """Write a line about the progress to stderr."""
    sys.stderr.write(f"mpi_rollout: {text}\n")
    sys.stderr.flush()
