"""What the launcher tells a rank by variables of the environment, and how they are kept from the rank's children.

MPI reads them when it starts.  A program that the rank starts later would read them too: a solver that calls MPI_Init
would take itself for the rank, and the solvers of two envs would become one world.  So `take` removes them after MPI's
start, and who wants to know what the launcher has told asks this module.  What users set themselves stays, but for
names that launchers use too (`OMPI_MCA_orte_...`, `OMPI_MCA_ess...`, `OMPI_MCA_pmix...`): nobody can see who has set
them.  The number of the rank on its host stays as well: programs choose a GPU by it.

Like `start`, this module imports only what Python itself has at hand, and old Pythons can read it.
"""

import os

LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_SIZE_VARIABLES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
# Variables by which ranks know Open MPI's mpirun, and MPICH's; these start their helpers by srun, whose step they show.
OF_MPIRUN = ("OMPI_COMM_WORLD_SIZE", "PRTE_LAUNCHED", "HYDI_CONTROL_FD", *LOCAL_SIZE_VARIABLES)
STEP_ID = "SLURM_STEP_ID"
FIRST_SPECIAL_STEP = 0xFFFFFFF0  # Steps that srun did not start: the batch script, the shell of salloc (slurm.h).
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
# First letters of programs that start ranks on their host: of Open MPI, of MPICH and its relatives; of SLURM, of PALS.
GIVE_GROUPS = ("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "hydra")  # Each rank leads a process group.
LAUNCHERS = (*GIVE_GROUPS, "slurmstepd", "palsd")

# First letters of what is the rank's own: of PMIx and PMI, of the launchers of Open MPI 5 and 4, MPICH, MVAPICH, PALS
# and jsrun, and of a step of SLURM.  Without the latter the rank's children see what a batch script sees.
_TAKEN = (
    *("PMIX_", "PMI_", "PMI2_", "PRTE_", "ORTE_", "HYDI_", "PALS_", "JSM_NAMESPACE_", "MPI_LOCAL"),
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_NUM_APP_CTX", "OMPI_APP_CTX_", "OMPI_FIRST_RANKS"),
    *("OMPI_FILE_LOCATION", "OMPI_COMMAND", "OMPI_ARGV", "OMPI_TOOL_NAME", "OMPI_VERSION", "OMPI_LIBDIR_LOC"),
    *("OMPI_MCA_PREFIXES", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir", "OMPI_MCA_cpu_type", "OMPI_MCA_orte_"),
    *("OMPI_MCA_ess", "OMPI_MCA_pmix", "OPAL_USER_PARAMS_GIVEN", "MV2_COMM_WORLD_", "MVP_COMM_WORLD_"),
    *("SLURM_STEP", "SLURM_PROCID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_SRUN_COMM_", "SLURM_PMI"),
)
_USERS = ("PMIX_MCA_", "PRTE_MCA_")  # Settings, which launchers pass on as they are.
# Where Open MPI's mpirun is installed; it gives that to the ranks, and a solver of another Open MPI would look there.
_PREFIX = "OPAL_PREFIX"
_taken: "dict[str, str]" = {}


def variables() -> "dict[str, str]":
    """Return the environment with what was taken out of it."""
    return {**_taken, **os.environ}


def variable(name: str) -> str:
    """Return what a variable of the launcher says, "" if there is none."""
    return os.environ.get(name, _taken.get(name, ""))


def take() -> None:
    """Take the launcher's variables out of the environment, of C as well; call it as soon as MPI has started."""
    for name in [*os.environ]:
        if name in LOCAL_RANK_VARIABLES:
            continue
        if name.startswith(_TAKEN) and not name.startswith(_USERS):
            _keep(name)
    if _PREFIX in os.environ and is_launcher(os.getppid()) and not _has(os.getppid(), _PREFIX):
        _keep(_PREFIX)


def _keep(name: str) -> None:
    _taken[name] = os.environ[name]  # First, since a thread that hears signals may ask for it meanwhile.
    del os.environ[name]


def _has(pid: int, name: str) -> bool:
    """Tell whether a process was started with a variable; True where the system does not say."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(pair.startswith(f"{name}=".encode()) for pair in file.read().split(b"\0"))
    except OSError:
        return True


def is_launcher(pid: "int | str", names: "tuple[str, ...]" = LAUNCHERS) -> bool:
    """Tell whether a process is a launcher or one of its helpers, by its name."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().startswith(names)
    except OSError:
        return False


def claimed_rank() -> int:
    """Return the rank that the launcher gave this process, without starting MPI; 0 without a launcher."""
    return number_in(RANK_VARIABLES)


def claimed_local_rank() -> int:
    """Return the number of this process among those that a launcher has started on this host; 0 without a launcher."""
    return number_in(LOCAL_RANK_VARIABLES)


def claimed_local_size() -> int:
    """Return how many ranks a launcher says it has started on this host; 0 where none says it."""
    if not is_of_srun():
        return number_in(LOCAL_SIZE_VARIABLES)
    sizes: list[str] = []  # SLURM writes them as in 2(x3),1: one number for each node.
    for part in variable("SLURM_STEP_TASKS_PER_NODE").split(","):
        size, _, times = part.rstrip(")").partition("(x")
        sizes += [size] * int(times or 1)
    return int(sizes[number_in(("SLURM_NODEID",))] or 0)


def is_step(step_id: str) -> bool:
    """Tell by `SLURM_STEP_ID` whether srun started a process or its launcher: neither a batch script nor salloc did."""
    return step_id.isdigit() and int(step_id) < FIRST_SPECIAL_STEP


def is_of_srun() -> bool:
    """Tell whether srun itself started this process, not a launcher that uses it."""
    return is_step(variable(STEP_ID)) and not any(map(variable, OF_MPIRUN))


def number_in(names: "tuple[str, ...]") -> int:
    """Return the number that the first of these variables has which has one; 0 without any."""
    for name in names:
        if variable(name).isdigit():
            return int(variable(name))
    return 0
