"""MPI as a world: who started us, do the ranks agree, how all of them end.

mpi4py is imported inside the functions: importing it starts MPI, which on many login nodes ends the process.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi_rollout.errors import Interrupted, LaunchError, RolloutError, StorageError, UsageError

ROOT = 0
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
        is_of_the_run = failed == [ROOT] and isinstance(problem, UsageError | StorageError)  # Output and policy.
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
    except BaseException:
        sys.stdout.flush()
        sys.stderr.write(f"mpi_rollout: rank {comm.rank} ({os.uname().nodename}) failed:\n{traceback.format_exc()}")
        abort(comm, RolloutError.exit_code)


def abort(comm: Any, code: int) -> None:
    """End all ranks at once with an exit code.  Does not return."""
    sys.stderr.flush()
    comm.Abort(code)


def leave(code: int) -> None:
    """Leave MPI in good order but not through the interpreter's own end, which a broken HDF5 file would crash."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.Finalize()
    os._exit(code)
