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
from mpi_rollout.errors import StorageError, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.host import num_cores_of_host, num_usable_cores
from mpi_rollout.text import counted

Facts = dict[str, str | int]


def machine_facts() -> Facts:
    """Return by name what must stay the same for samples to belong to one study: facts of machine and program.

    In a batch job all cores of the node are counted: a job is allotted others each time.
    """
    found = versions()
    with suppress(importlib.metadata.PackageNotFoundError):
        found |= {"mpi4py": importlib.metadata.version("mpi4py")}  # An import of it would start MPI.
    return {
        "cpu_model": cpu_model(),
        "num_cores": num_cores_of_host() if "SLURM_JOB_ID" in os.environ else num_usable_cores(),
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "commit": _commit(),
    }


def cpu_model() -> str:
    """Return the processor's name as the kernel has it."""
    match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return match.group(1).strip() if match else platform.machine()


def _commit() -> str:
    """Return the last commit that changed this package, with `-dirty` if files changed since; empty without git."""
    last = _git("log", "-1", "--format=%h", "--", ".")
    return last + "-dirty" if last and _git("status", "--porcelain", "--", ".") else last


def _git(*arguments: str) -> str:
    package = Path(__file__).parents[1]
    try:
        done = subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def place_and_time(host: str, facts: Facts, libraries: Iterable[str], started: str) -> str:
    """Return host, processor, cores, MPI libraries, each once, and the day, in words."""
    machine = f"{host} ({facts['cpu_model']}, {counted(int(facts['num_cores']), 'core')})"
    return ", ".join([machine, *dict.fromkeys(filter(None, libraries)), started[:10]])


def origin() -> dict[str, str]:
    """Return command, host and time of a study that begins now, by name."""
    command = shlex.join(["python", "-m", "mpi_rollout", *sys.argv[1:]])
    return {"command": command, "host": os.uname().nodename, "started": utc_now()}


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
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"--out {out}: cannot make the folder {folder}: {error.strerror}") from error
    try:
        if _locked(descriptor, out):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, out: str) -> bool:
    """Lock a folder; return False on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # Otherwise who had it before has just removed it.
            return True
    except BlockingIOError:
        pass
    except OSError:
        return False
    raise UsageError(f"--out {out}: another process does this study; wait for its end or use another --out")
