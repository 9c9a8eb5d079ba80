"""MPI as a world: who started us, do the ranks agree, how all of them end.

mpi4py is imported inside the functions: importing it starts MPI, which on many login nodes ends the process.
"""

import faulthandler
import fcntl
import os
import re
import stat
import sys
import termios
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from mpi_rollout.errors import (
    Complete,
    Interrupted,
    LaunchError,
    RolloutError,
    StorageError,
    UsageError,
    first_line,
)
from mpi_rollout.guard import release

ROOT, STDERR = 0, 2
MEETING_TAG = 32123  # On a communicator that may be the user's; every MPI has tags up to 32767.
GRACE_S = 2.0
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


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


def start_mpi_on_all_ranks(timeout_s: float) -> None:
    """Start MPI, or after `timeout_s` seconds end this process with its stack.  **Collective.**

    MPI_Init waits for all ranks, and Open MPI's for ever if one has left without it.  No Python code runs meanwhile,
    so what can be said then is the name of this function, in the stack.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    from mpi4py import MPI  # noqa: F401

    faulthandler.cancel_dump_traceback_later()


def with_stacks(call: Callable[[], Any]) -> Any:
    """Call it so that a crash in C code (SIGSEGV, SIGABRT, ...) prints Python's stack on stderr, with the rank.

    No Python code runs any more in such a process, and what prints the stack knows nothing of ranks.  So the rank
    stands in the outermost frame, as the name of its file.
    """
    faulthandler.enable(2)
    name = f"rank {claimed_rank()} ({os.uname().nodename})"
    return eval(compile("call()", name, "eval"), {"call": call})


def world() -> Any:
    """Start MPI and return COMM_WORLD.  **Collective.**

    Raises
    ------
    LaunchError
        This process stands alone though a launcher started several: they run another MPI than the launcher is of.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    claimed, variable = claimed_size()
    if comm.size == 1 and claimed > 1:
        raise LaunchError(
            f"the launcher started {claimed} processes ({variable}={claimed}) but each is alone in its MPI world; "
            f"mpi4py loaded {library()}; start with the mpirun of that library, or under srun with "
            f"--mpi={'pmix' if 'Open MPI' in library() else 'pmi2'}"
        )
    return comm


def check_size(comm: Any, expect_ranks: int | None) -> None:
    """Raise LaunchError if there are not `expect_ranks` ranks."""
    if expect_ranks is not None and comm.size != expect_ranks:
        raise LaunchError(f"--expect-ranks {expect_ranks}, got {comm.size} ranks; mpi4py loaded {library()}")


def library() -> str:
    """The MPI library in use, e.g. `Open MPI v5.0.11`."""
    from mpi4py import MPI

    return MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\x00 ")


def meet(comm: Any, timeout_s: float, what: str) -> None:
    """Wait until all ranks have called this.  **Collective.**

    A rank that never does would leave the others in their first collective for ever: after `timeout_s` seconds they
    say who is missing, and end the job.
    """
    deadline = monotonic() + timeout_s
    if comm.rank == ROOT:
        awaited = {rank: comm.irecv(source=rank, tag=MEETING_TAG) for rank in range(1, comm.size)}
    else:
        comm.isend(None, ROOT, MEETING_TAG).Wait()
        awaited = {ROOT: comm.irecv(source=ROOT, tag=MEETING_TAG)}
        deadline += GRACE_S  # The root knows best who is missing.
    pause_s = 0.0
    while awaited:
        awaited = {rank: request for rank, request in awaited.items() if not request.test()[0]}
        if awaited and monotonic() > deadline:
            ranks = ", ".join(map(str, list(awaited)[:8])) + (" ..." if len(awaited) > 8 else "")
            sys.stderr.write(
                f"mpi_rollout: rank {comm.rank} ({os.uname().nodename}): rank {ranks} has not called {what} within "
                f"{timeout_s:g} s; call it on all ranks, or give it a longer timeout_s\n"
            )
            abort(comm, LaunchError.exit_code)
        sleep(pause_s)
        pause_s = min(pause_s + 1e-4, 0.02)
    if comm.rank == ROOT:
        for request in [comm.isend(None, rank, MEETING_TAG) for rank in range(1, comm.size)]:
            request.Wait()


def agree(comm: Any, prepare: Callable[[], Any], fingerprint: Callable[[Any], dict[str, str]]) -> tuple[Any, list[str]]:
    """Prepare on every rank and go on only if all could and all mean the same.  **Collective.**

    Parameters
    ----------
    prepare
        Gives this rank's part; may raise, on some ranks or on all.
    fingerprint
        Of a prepared part, what must be equal wherever it is given.

    Returns
    -------
    The prepared part, and on the root the hosts of all ranks.

    Raises
    ------
    RolloutError
        On all ranks alike; the first rank's reason stands for all.
    """
    part, problem, marks = None, None, {}
    try:
        part = prepare()
        marks = fingerprint(part)
    except RolloutError as error:
        problem = error
    except KeyboardInterrupt:
        problem = Interrupted("interrupted before the first step")
    except BaseException as error:
        stack = "".join(traceback.format_exception(error)).rstrip()
        problem = RolloutError(f"{type(error).__name__}: {error}\n{stack}")
    reports = comm.gather((problem, marks, os.uname().nodename), ROOT)
    verdict = comm.bcast(_verdict(reports) if comm.rank == ROOT else None, ROOT)
    if verdict is not None:
        raise verdict
    return part, [host for *_, host in reports or ()]


def _verdict(reports: list[tuple[RolloutError | None, dict[str, str], str]]) -> RolloutError | None:
    failed = [rank for rank, (problem, *_) in enumerate(reports) if problem is not None]
    if failed:
        problem, _, host = reports[failed[0]]
        is_of_the_run = failed == [ROOT] and isinstance(
            problem, UsageError | StorageError | Complete
        )  # Output and policy.
        where = "" if len(failed) == len(reports) or is_of_the_run else f"rank {failed[0]} ({host}): "
        return type(problem)(f"{where}{problem}")
    expected: dict[str, tuple[str, int]] = {}
    for rank, (_, marks, host) in enumerate(reports):
        for key, got in marks.items():
            first, first_rank = expected.setdefault(key, (got, rank))
            if got != first:
                return LaunchError(
                    f"the ranks do not agree on {key}: rank {first_rank} has {first}, rank {rank} ({host}) has {got}; "
                    "start all ranks with the same command in the same environment"
                )
    return None


def take_names_off_shared_memory(comm: Any) -> None:
    """Have the system free MPICH's shared memory with its last process, even after SIGKILL.  **Collective.**

    MPICH removes the name at MPI_Finalize only, so that each killed job would leave 1 MB a rank in /dev/shm.  Nobody
    needs the name when all ranks of the host have mapped it.  (Open MPI's launcher removes its ranks' segments.)
    """
    from mpi4py import MPI

    if "MPICH" not in library() or not os.path.exists("/proc/self/maps"):
        return
    with open("/proc/self/maps") as file:
        mapped = set(re.findall(r"/dev/shm/mpich_shm_\S+$", file.read(), re.MULTILINE))
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    by_all = set.intersection(*host.allgather(mapped))
    if host.rank == 0:
        for path in by_all:
            with suppress(OSError):
                os.unlink(path)
    host.Free()


def share_refusal(error: RolloutError) -> RolloutError:
    """Tell all ranks of an error from before MPI was started; return the one that stands for all.  **Collective.**

    A rank that left by itself would make the launcher end the others, rank 0 perhaps before it has told why.
    """
    if claimed_size()[0] == 1 or "mpi4py.MPI" in sys.modules:
        return error

    def refuse() -> None:
        raise error

    try:
        agree(world(), refuse, lambda part: {})
    except RolloutError as verdict:
        return verdict
    return error


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
        sys.stderr.write(f"mpi_rollout: rank {comm.rank} ({os.uname().nodename}): interrupted\n")
        abort(comm, Interrupted.exit_code)
    except BaseException as error:
        sys.stdout.flush()
        place, lost = f"rank {comm.rank} ({os.uname().nodename})", lost_ranks(comm, error)
        if is_loss(error):
            what = first_line(error).removesuffix(", error stack:")
            sys.stderr.write(f"mpi_rollout: {place}: another rank is gone; MPI says: {what}\n")
        elif not lost:
            sys.stderr.write(f"mpi_rollout: {place} failed:\n{traceback.format_exc()}")
        elif comm.rank == min({*range(comm.size)} - {*lost}):
            sys.stderr.write(f"mpi_rollout: lost rank {', '.join(map(str, lost))}, and the job ends with it\n")
        else:
            sleep(GRACE_S)  # One tells for all, and aborts.
        abort(comm, RolloutError.exit_code)


def is_loss(error: BaseException) -> bool:
    """Whether an error is how MPICH tells of a rank that is gone, right before its launcher ends the others."""
    from mpi4py import MPI

    return isinstance(error, MPI.Exception) and error.Get_error_class() == MPI.ERR_OTHER


def lost_ranks(comm: Any, error: BaseException) -> list[int]:
    """The ranks that are gone, if that is why there was an error; only Open MPI's ULFM tells."""
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception) or error.Get_error_class() != MPI.ERR_PROC_FAILED:
        return []
    failed = comm.Get_failed()
    return failed.Translate_ranks(None, comm.Get_group())


def abort(comm: Any, code: int) -> None:
    """End all ranks at once with an exit code, when the launcher has what they said.  Does not return."""
    sys.stderr.flush()
    _await_reader(STDERR)
    release()
    comm.Abort(code)


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


def leave(code: int, finalizes: bool = True) -> None:
    """Leave MPI in good order but not through the interpreter's own end, which a broken HDF5 file would crash.

    Without `finalizes` the launcher sees to the order: after the loss of a rank MPI_Finalize sometimes waits for it for
    ever (Open MPI 5.0.11, 5 of 14 jobs of three ranks that lost two).
    """
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    if finalizes:
        MPI.Finalize()
    os._exit(code)
