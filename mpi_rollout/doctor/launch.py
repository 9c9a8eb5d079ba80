"""The MPI library of this process, and the launcher that starts its ranks."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import mpi4py

from mpi_rollout.doctor.findings import BAD, OK, WARN, Finding
from mpi_rollout.exchange import world
from mpi_rollout.process.allocation import starting, unused
from mpi_rollout.process.rank_variables import STEP_ID, is_step

OPEN_MPI, MPICH = "Open MPI", "MPICH"
COMMAND = "python -m mpi_rollout doctor"


class Launcher(NamedTuple):
    """What started the ranks; `vendor` is empty where it starts ranks of any MPI."""

    name: str
    vendor: str = ""


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher, None without one.

    An mpirun within a SLURM job starts its daemons by srun, and is the launcher all the same.
    """
    if "PRTE_LAUNCHED" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return Launcher("Open MPI's mpirun", OPEN_MPI)
    if "HYDI_CONTROL_FD" in environ:
        return Launcher("MPICH's mpiexec (hydra)", MPICH)
    if is_step(environ.get(STEP_ID, "")) and "SLURM_PROCID" in environ:
        plugin = environ.get("SLURM_MPI_TYPE", "")
        return Launcher("srun" + (f" --mpi={plugin}" if plugin else ""))
    if "PMI_SIZE" in environ:
        return Launcher("a PMI launcher, as MPICH's mpiexec", MPICH)
    return Launcher("a PMIx launcher") if "PMIX_RANK" in environ else None


def vendor_of(library: str) -> str:
    """Return the family of an MPI library: all that descends from MPICH is started alike."""
    return OPEN_MPI if OPEN_MPI in library else MPICH


def how_to_bind(environ: Mapping[str, str]) -> str:
    """Return the option that gives each rank cores of its own."""
    if environ.get("MPI_ROLLOUT_BIND") == "none":  # By slurm/launch.sh.
        return "leave BIND=none out of slurm/site.sh"
    launcher = launcher_of(environ)
    if launcher is None or launcher.vendor == OPEN_MPI:
        return "mpirun --map-by core --bind-to core"
    return "mpiexec -bind-to core" if launcher.vendor == MPICH else "srun --cpu-bind=cores --cpus-per-task=1"


def load_library() -> tuple[str, str]:
    """Load the MPI library without starting MPI; return its name and path."""
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, mpi4py.rc.finalize is not False
    import_module("mpi4py.MPI")
    library = world.library_name()
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
    named = sorted(path for path in paths if os.path.basename(path).startswith(("libmpi.so", "libmpi_abi", "libmpich")))
    return library, next(iter(named), "")


def judge_launcher(library: str, path: str, environ: Mapping[str, str]) -> Finding:
    """Check that the launcher is of the MPI library that mpi4py has loaded."""
    launcher, vendor = launcher_of(environ), vendor_of(library)
    beside = Path(path).parent.parent / "bin" / "mpiexec"
    start = f"{beside} -n N" if path and beside.exists() else f"the mpiexec of {library}, -n N"
    if launcher is None:
        size, words = unused(environ)
        if size > 1:
            start = starting(size, library, environ)
        advice = f"start it as you start runs: {start} {COMMAND}"
        return Finding("launcher", "none: one process" + f" in {words}" * bool(words), WARN if words else OK, advice)
    if launcher.vendor not in ("", vendor):
        advice = f"start with {start}, or have mpi4py load the launcher's library: module load it, set MPI4PY_LIBMPI"
        return Finding("launcher", f"{launcher.name} does not start ranks of {library}", BAD, advice)
    return Finding("launcher", launcher.name)
