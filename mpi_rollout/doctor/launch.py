"""Which launcher started this process, and whether it is of the same MPI as the library: from the environment alone."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mpi_rollout.doctor.findings import BAD, WARN, Finding
from mpi_rollout.errors import counted

OPEN_MPI, MPICH = "Open MPI", "MPICH"
COMMAND = "python -m mpi_rollout doctor"


@dataclass(frozen=True)
class Launcher:
    """What started the ranks; `vendor` is empty if any MPI's ranks may be started by it."""

    name: str
    vendor: str = ""


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher, None without one.  mpirun within a SLURM job is mpirun's: it starts its daemons by srun."""
    if "PRTE_LAUNCHED" in environ or "OMPI_COMM_WORLD_SIZE" in environ:
        return Launcher("Open MPI's mpirun", OPEN_MPI)
    if "HYDI_CONTROL_FD" in environ:
        return Launcher("MPICH's mpiexec (hydra)", MPICH)
    if "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ:
        plugin = environ.get("SLURM_MPI_TYPE", "")
        return Launcher("srun" + (f" --mpi={plugin}" if plugin else ""))
    if "PMI_SIZE" in environ:
        return Launcher("a PMI launcher, as MPICH's mpiexec", MPICH)
    if "PMIX_RANK" in environ:
        return Launcher("a PMIx launcher")
    return None


def vendor_of(library: str) -> str:
    """The family of an MPI library: all that descends from MPICH is started alike."""
    return OPEN_MPI if OPEN_MPI in library else MPICH


def how_to_start(library: str, path: str, launcher: Launcher | None) -> str:
    """The command that starts ranks of this library."""
    if launcher is not None and launcher.name.startswith("srun"):
        return f"srun --mpi={'pmix' if vendor_of(library) == OPEN_MPI else 'pmi2'} (see srun --mpi=list)"
    beside = Path(path).parent.parent / "bin" / "mpiexec"
    return f"{beside} -n N" if path and beside.exists() else f"the mpiexec of {library}, -n N"


def judge_launcher(library: str, path: str, environ: Mapping[str, str]) -> list[Finding]:
    """The launcher, beside the library that mpi4py has loaded."""
    launcher = launcher_of(environ)
    start = how_to_start(library, path, launcher)
    if launcher is None:
        return [Finding("launcher", "none: one process", advice=f"start it as you start runs: {start} {COMMAND}")]
    if launcher.vendor and launcher.vendor != vendor_of(library):
        return [
            Finding(
                "launcher", f"{launcher.name} does not start ranks of {library}", BAD,
                f"start with {start}, or have mpi4py load the launcher's library: module load it, set MPI4PY_LIBMPI",
            )
        ]  # fmt: skip
    return [Finding("launcher", launcher.name)]


def judge_size(size: int, claimed: tuple[int, str], library: str, path: str) -> list[Finding]:
    """The world, beside the number of ranks that the launcher claims in the environment."""
    num_claimed, variable = claimed
    if size == 1 and num_claimed > 1:
        start = how_to_start(library, path, launcher_of(os.environ))
        found = f"{num_claimed} processes were started ({variable}={num_claimed}), each is alone in its MPI world"
        return [Finding("world", found, BAD, f"start with {start}: now each would do the whole run by itself")]
    return [Finding("world", counted(size, "rank"), figures={"num_ranks": size})]


def judge_slurm(environ: Mapping[str, str]) -> list[Finding]:
    """The SLURM job, if there is one."""
    if "SLURM_JOB_ID" not in environ:
        return []
    names = ("NTASKS", "CPUS_PER_TASK", "JOB_NUM_NODES", "MPI_TYPE", "CPU_BIND")
    told = [f"{name.lower()} {environ['SLURM_' + name]}" for name in names if environ.get("SLURM_" + name)]
    found = f"job {environ['SLURM_JOB_ID']}" + "".join(f", {each}" for each in told)
    per_task = environ.get("SLURM_CPUS_PER_TASK")
    if per_task and "SRUN_CPUS_PER_TASK" not in environ:
        advice = f"export SRUN_CPUS_PER_TASK={per_task}: srun of SLURM 22.05 to 23.02 does not take it from the job"
        return [Finding("slurm", found, WARN, advice)]
    if "SLURM_STEP_ID" not in environ and launcher_of(environ) is None:
        return [Finding("slurm", found, advice=f"this is the batch script itself: srun or mpirun {COMMAND}")]
    return [Finding("slurm", found)]
