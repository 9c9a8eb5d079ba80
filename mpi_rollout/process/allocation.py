"""The allocation of a batch system in which this process runs, and how ranks are started in it.

A process that no launcher started is one rank, however many tasks its job has: `sbatch --ntasks=4 --wrap "python ..."`
starts one.  What launchers claim of the ranks that they start is in `exchange.world`.
"""

from collections.abc import Mapping
from contextlib import suppress

from mpi_rollout.process.rank_variables import OF_MPIRUN, STEP_ID, is_step, variables

OF_LAUNCHERS = (*OF_MPIRUN, "PMI_SIZE", "PMI_RANK", "PMIX_RANK")
# What batch systems say of the size of a job: SLURM (of which `sbatch --nodes=2` says the second alone), PBS, LSF, Grid
# Engine.
SIZES = {
    "SLURM_NTASKS": "task",
    "SLURM_JOB_NUM_NODES": "node",
    "PBS_NP": "slot",
    "LSB_DJOB_NUMPROC": "slot",
    "NSLOTS": "slot",
}
NODE_FILE = "PBS_NODEFILE"  # It has a line for each slot.


def unused(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the size of the job in which no launcher started this process, and words for it; (1, "") without one."""
    if is_step(environ.get(STEP_ID, "")) or any(name in environ for name in OF_LAUNCHERS):
        return 1, ""
    for name, what in SIZES.items():
        if environ.get(name, "").isdigit() and int(environ[name]) > 1:
            return int(environ[name]), f"an allocation of {environ[name]} {what}s ({name}={environ[name]})"
    with suppress(OSError), open(environ.get(NODE_FILE, "")) as file:
        if (size := len(file.read().split())) > 1:
            return size, f"an allocation of {size} slots ({NODE_FILE} has {size} lines)"
    return 1, ""


def one_of_many(library: str, otherwise: str) -> str:
    """Return words about a job that one rank does not use, for who has started no others; "" without such a job.

    `otherwise` is what says that one rank is meant.
    """
    size, words = unused(variables())
    if size == 1:
        return ""
    return f"1 rank in {words}; to use all: {starting(size, library)} ...; if 1 is meant, say so by {otherwise}"


def starting(num_ranks: int, library: str = "", environ: Mapping[str, str] | None = None) -> str:
    """Return the command that starts so many ranks, in the words of who started this process.

    `library` is the name of the MPI library, if it is known.
    """
    environ = variables() if environ is None else environ
    has_mpirun = any(name in environ for name in (OF_MPIRUN if is_step(environ.get(STEP_ID, "")) else OF_LAUNCHERS))
    if "SLURM_JOB_ID" not in environ or has_mpirun:
        return f"mpirun -n {num_ranks}"
    tasks = environ.get("SLURM_NTASKS", "")
    if tasks.isdigit() and int(tasks) < num_ranks:
        return f"sbatch --ntasks={num_ranks}"
    plugin = f"--mpi={'pmix' if 'Open MPI' in library else 'pmi2'} " if library else ""
    return f"srun {plugin}-n {num_ranks}"
