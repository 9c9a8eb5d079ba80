"""What a measurement depends on besides its options: the machine and the program."""

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

from mpi_rollout.config import versions
from mpi_rollout.core.host import num_cores_of_host, num_usable_cores

PACKAGE = Path(__file__).parent.parent


def machine_facts() -> dict[str, str | int]:
    """What must stay the same for samples to belong to one study, by name."""
    return {
        "cpu_model": cpu_model(),
        "num_cores": _num_cores(),
        "versions": ", ".join(f"{name} {version}" for name, version in (versions() | mpi4py_version()).items()),
        "commit": commit(),
    }


def _num_cores() -> int:
    """Of this machine as far as it is ours.

    In a batch job all of the node's: what a job is allotted of them is another number each time, and no fact of the
    machine.  What ranks may run on is told by themselves.
    """
    return num_cores_of_host() if "SLURM_JOB_ID" in os.environ else num_usable_cores()


def mpi4py_version() -> dict[str, str]:
    """Without importing it, which would start MPI."""
    try:
        return {"mpi4py": importlib.metadata.version("mpi4py")}
    except importlib.metadata.PackageNotFoundError:
        return {}


def cpu_model() -> str:
    """As the kernel names it."""
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found.group(1).strip() if found else platform.machine()


def commit() -> str:
    """The last commit that changed this package, with `-dirty` if it was changed since; empty outside of git."""
    found = _git("log", "-1", "--format=%h", "--", ".")
    return found + "-dirty" if found and _git("status", "--porcelain", "--", ".") else found


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
