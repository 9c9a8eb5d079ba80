"""MPI as a world: who started us, and how all of its ranks end.

mpi4py is imported inside the functions: importing it starts MPI, which on many login nodes ends the process.
"""

import ctypes
import faulthandler
import fcntl
import os
import re
import stat
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from mpi_rollout.errors import Interrupted, LaunchError, RolloutError, counted, first_line
from mpi_rollout.exchange.lone import lone_world, refuse_ranks
from mpi_rollout.process import exits
from mpi_rollout.process.console import STDERR, say, settle
from mpi_rollout.process.ending import Ending
from mpi_rollout.process.launcher import is_guarded, release

ROOT = 0
GRACE_S = 2.0
TELL_AFTER_S = 60.0  # Of waiting for ranks: then the user is told of it.
NO_LIBRARY = (ImportError, RuntimeError)  # The second from mpi4py's wheels, which look for a library by themselves.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_endings: list[Ending] = []  # At most one.


def claimed_rank() -> int:
    """The rank that the launcher gave this process, without starting MPI; 0 where there is no launcher."""
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def claimed_size() -> tuple[int, str]:
    """The number of ranks that a launcher claims in the environment, and in which variable; (1, "") without one."""
    for name in _SIZE_VARIABLES:
        if name == "SLURM_NTASKS" and "SLURM_STEP_ID" not in os.environ:
            continue  # The batch script itself, not a process that srun started.
        if os.environ.get(name, "").isdigit() and int(os.environ[name]) > 1:
            return int(os.environ[name]), name
    return 1, ""


def start_mpi_on_all_ranks(timeout_s: float, limit: str = "timeout_s") -> None:
    """Start MPI, or after `timeout_s` seconds say that ranks are missing and end this process.  **Collective.**

    MPI_Init waits for all ranks, and Open MPI's for ever if one has left without it.  Where there is no MPI library, a
    process goes on that no launcher started with others.

    Parameters
    ----------
    limit
        What the user calls the time limit.
    """
    try:
        import mpi4py

        if _loaded() is None:
            mpi4py.rc.initialize, mpi4py.rc.finalize = False, mpi4py.rc.finalize is not False
        from mpi4py import MPI
    except NO_LIBRARY:
        size, variable = claimed_size()
        return refuse_ranks(claimed_rank(), size, variable) if size > 1 else None
    if MPI.Is_initialized():
        return
    timers = [threading.Timer(timeout_s, _miss_ranks, (timeout_s, limit))]
    if claimed_rank() == ROOT:
        timers.append(threading.Timer(TELL_AFTER_S, _tell_of_waiting, (timeout_s, limit)))
    for timer in timers:
        timer.daemon = True
        timer.start()
    _init(MPI, mpi4py.rc)
    for timer in timers:
        timer.cancel()


def _loaded() -> Any:
    """mpi4py's module MPI, or None in a process that does without."""
    return sys.modules.get("mpi4py.MPI")


def _init(MPI: Any, rc: Any) -> None:  # noqa: N803  As mpi4py has it.
    """Do as mpi4py does when it is imported, but let other threads run meanwhile: it would hold Python's lock."""
    level = getattr(MPI, f"THREAD_{rc.thread_level.upper()}") if rc.threads else MPI.THREAD_SINGLE
    libraries = ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)  # First what a profiler has put before MPI.
    init = next(library.MPI_Init_thread for library in libraries if hasattr(library, "MPI_Init_thread"))
    if init(None, None, level, ctypes.byref(ctypes.c_int())):
        raise LaunchError(f"MPI_Init of {library()} failed")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)


def _tell_of_waiting(timeout_s: float, limit: str) -> None:
    say(
        f"mpi_rollout: rank 0 ({os.uname().nodename}): waits for some of {counted(claimed_size()[0], 'rank')} to "
        f"start MPI, {timeout_s:g} s at most ({limit})\n"
    )


def _miss_ranks(timeout_s: float, limit: str) -> None:
    say(
        f"mpi_rollout: rank {claimed_rank()} ({os.uname().nodename}): another rank has not started MPI within "
        f"{timeout_s:g} s; start this program on all {counted(claimed_size()[0], 'rank')}, or give them more time "
        f"by {limit}\n"
    )
    exits.leave_now(LaunchError.exit_code)


def with_stacks(call: Callable[[], Any]) -> Any:
    """Call it so that a crash in C code (SIGSEGV, SIGABRT, ...) prints Python's stack on stderr, with the rank.

    No Python code runs any more in such a process, and what prints the stack knows nothing of ranks.  So the rank
    stands in the outermost frame, as the name of its file.
    """
    faulthandler.enable(2)
    name = f"rank {claimed_rank()} ({os.uname().nodename})"
    return eval(compile("call()", name, "eval"), {"call": call})


def world() -> Any:
    """Return COMM_WORLD of an MPI that has been started, or what stands for it in one process.  **Collective.**

    Raises
    ------
    LaunchError
        This process stands alone though a launcher started several: they run another MPI than the launcher is of.
    """
    if _loaded() is None:
        return lone_world()
    comm = _loaded().COMM_WORLD
    claimed, variable = claimed_size()
    if comm.size == 1 and claimed > 1:
        raise LaunchError(
            f"the launcher started {claimed} processes ({variable}={claimed}) but each is alone in its MPI world; "
            f"mpi4py loaded {library()}; start with the mpirun of that library, or under srun with "
            f"--mpi={'pmix' if 'Open MPI' in library() else 'pmi2'}"
        )
    return comm


def shared_ranks(first: Any, second: Any) -> str:
    """Which ranks two communicators of this process share: "all", in the same order, "some" others, or "none"."""
    from mpi4py import MPI

    if MPI.Comm.Compare(first, second) in (MPI.IDENT, MPI.CONGRUENT):
        return "all"
    both = MPI.Group.Intersection(first.Get_group(), second.Get_group())
    return "some" if both.size > 1 else "none"


def check_thread() -> None:
    """Raise LaunchError if this thread must not use MPI as it was started."""
    MPI = _loaded()  # noqa: N806  As mpi4py has it.
    if MPI is not None and MPI.Query_thread() < MPI.THREAD_SERIALIZED and not MPI.Is_thread_main():
        raise LaunchError(
            "MPI was started for one thread only (mpi4py.rc.thread_level is "
            f"{'single' if MPI.Query_thread() == MPI.THREAD_SINGLE else 'funneled'}), and this is another one; use "
            "mpi_rollout in the main thread, or leave thread_level as it is by default"
        )


def check_size(comm: Any, expect_ranks: int | None) -> None:
    """Raise LaunchError if there are not `expect_ranks` ranks."""
    if expect_ranks is not None and comm.size != expect_ranks:
        raise LaunchError(f"--expect-ranks {expect_ranks}, got {counted(comm.size, 'rank')}; mpi4py loaded {library()}")


def library() -> str:
    """The MPI library in use, e.g. `Open MPI v5.0.11`; `no MPI library` without one."""
    try:
        from mpi4py import MPI
    except NO_LIBRARY:
        return "no MPI library"
    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\x00 ")


def take_names_off_shared_memory(comm: Any) -> None:
    """Have the system free MPICH's shared memory with its last process, even after SIGKILL.  **Collective.**

    MPICH removes the name at MPI_Finalize only, so that each killed job would leave 1 MB a rank in /dev/shm.  Nobody
    needs the name when all ranks of the host have mapped it.  (Open MPI's launcher removes its ranks' segments.)
    """
    if "MPICH" not in library() or not os.path.exists("/proc/self/maps"):
        return
    with open("/proc/self/maps") as file:
        mapped = set(re.findall(r"/dev/shm/mpich_shm_\S+$", file.read(), re.MULTILINE))
    host = comm.Split_type(_loaded().COMM_TYPE_SHARED)
    by_all = set.intersection(*host.allgather(mapped))
    if host.rank == 0:
        for path in by_all:
            with suppress(OSError):
                os.unlink(path)
    host.Free()


@contextmanager
def all_or_none(comm: Any) -> Iterator[None]:
    """End all ranks when this one leaves by an exception that the others do not know of.

    An exception alone would hang the job: this rank would wait in MPI_Finalize, the others for their next message.
    `RolloutError`s pass: those who raise them have told the other ranks.
    """
    try:
        yield
    except RolloutError:
        raise
    except KeyboardInterrupt:
        say(f"mpi_rollout: rank {comm.rank} ({os.uname().nodename}): interrupted\n")
        abort(comm, Interrupted.exit_code)
    except BaseException as error:
        exits.end_if_forked(error)
        place, lost = f"rank {comm.rank} ({os.uname().nodename})", lost_ranks(comm, error)
        if is_loss(error):
            what = first_line(error).removesuffix(", error stack:")
            say(f"mpi_rollout: {place}: another rank is gone; MPI says: {what}\n")
        elif not lost:
            say(f"mpi_rollout: {place} failed:\n{traceback.format_exc()}")
        elif comm.rank == min({*range(comm.size)} - {*lost}):
            say(f"mpi_rollout: lost rank {', '.join(map(str, lost))}, and the job ends with it\n")
        else:
            sleep(GRACE_S)  # One tells for all, and aborts.
        abort(comm, RolloutError.exit_code)


@contextmanager
def no_early_end(comm: Any, others_go_on: bool = False) -> Iterator[None]:
    """Inside, an env, a policy or a library that would end this rank, or its MPI, ends the job and is told of.

    See `exits`.

    Parameters
    ----------
    others_go_on
        It ends this rank alone: the others go on without it.
    """

    def refuse(what: str) -> None:
        place, end = f"rank {comm.rank} ({os.uname().nodename})", "it is lost" if others_go_on else "the job ends"
        say(f"mpi_rollout: {place}: an env, a policy or a library called {what} before the run was over; {end}\n")
        if others_go_on:
            settle()
            exits.leave_now(RolloutError.exit_code)
        abort(comm, RolloutError.exit_code)

    with _no_finalize(), exits.no_early_end(refuse):
        yield


@contextmanager
def _no_finalize() -> Iterator[None]:
    """Refuse MPI_Finalize, which deletes what is attached to COMM_SELF while all of MPI still works."""
    MPI = _loaded()  # noqa: N806  As mpi4py has it.
    if MPI is None:
        yield
        return
    is_over = False
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: None if is_over else exits.refuse("MPI.Finalize()"))
    MPI.COMM_SELF.Set_attr(key, None)
    try:
        yield
    finally:
        is_over = True  # What is around this one still refuses.
        MPI.COMM_SELF.Delete_attr(key)
        MPI.Comm.Free_keyval(key)


def is_loss(error: BaseException) -> bool:
    """Whether an error is how MPICH tells of a rank that is gone, right before its launcher ends the others."""
    MPI = _loaded()  # noqa: N806  As mpi4py has it.
    return MPI is not None and isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_OTHER


def lost_ranks(comm: Any, error: BaseException) -> list[int]:
    """The ranks that are gone, if that is why there was an error; only Open MPI's ULFM tells."""
    MPI = _loaded()  # noqa: N806  As mpi4py has it.
    if MPI is None or not isinstance(error, MPI.Exception) or error.Get_error_class() != MPI.ERR_PROC_FAILED:
        return []
    failed = comm.Get_failed()
    return failed.Translate_ranks(None, comm.Get_group())


def abort(comm: Any, code: int) -> None:
    """End all ranks at once with an exit code, when the launcher has what they said.  Does not return."""
    settle()
    _await_reader(STDERR)
    release()
    exits.allow_all()  # MPI_Abort may call exit().
    if is_guarded() and _is_last():
        exits.leave_now(code)  # With --with-ft ulfm, mpirun (5.0.11) makes 0 of what the last rank gives to MPI_Abort.
    comm.Abort(code)
    exits.leave_now(code)  # MPICH's (5.0.2) returned twice in a thousand jobs, and the rank went on.


def _is_last() -> bool:
    """Whether all other ranks are lost; only ULFM tells."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_failed().size == MPI.COMM_WORLD.size - 1


def _await_reader(descriptor: int, timeout_s: float = 1.0) -> None:
    """Wait until what was written to a pipe has been read from it.

    MPICH's launcher reads the pipes of its ranks no more once it is told of an abort, so a rank's last message, the
    one that says why, would be lost where the launcher is slow to get to it.
    """
    deadline = monotonic() + timeout_s
    unread = bytearray(4)
    with suppress(OSError):  # No pipe: nothing is to be waited for.
        while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and monotonic() < deadline:
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
            if not any(unread):
                return
            sleep(0.001)


def finalize() -> None:
    """End MPI, if it was started and has not been ended.  **Collective.**"""
    MPI = _loaded()  # noqa: N806  As mpi4py has it.
    if MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def watch_end(comm: Any, code: int) -> Ending:
    """See to it that this rank ends when its program is through, with this code if the program gives no other."""
    if not _endings:
        _endings.append(Ending(f"rank {comm.rank} ({os.uname().nodename})", finalize))
    [ending] = _endings
    ending.code = code
    return ending


def leave(code: int, finalizes: bool = True) -> None:
    """Leave MPI in good order but not through the interpreter's own end, which a broken HDF5 file would crash.

    Without `finalizes` the launcher sees to the order: after the loss of a rank MPI_Finalize sometimes waits for it for
    ever (Open MPI 5.0.11, 5 of 14 jobs of three ranks that lost two).
    """
    settle()
    if finalizes:
        finalize()
    exits.leave_now(code)
