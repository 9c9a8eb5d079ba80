"""The rare messages of all ranks: what the root asks of all of them between two orders."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


class Control(ABC):
    """Calls that all ranks make at the same place of the program."""

    @property
    @abstractmethod
    def comm(self) -> "MPI.Intracomm":
        """The communicator of the ranks that there are now, to end their job by."""

    @abstractmethod
    def gather(self, value: T) -> list[T] | None:
        """Gather a value of each rank, pickled: on the root a list in rank order, else None."""

    @abstractmethod
    def wait_for_all(self) -> None:
        """Wait until all ranks have called this."""

    @abstractmethod
    def free(self) -> None:
        """Give back what MPI holds for it."""


class CommControl(Control):
    """Rare messages on a communicator of their own."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self._comm = comm

    @property
    def comm(self) -> "MPI.Intracomm":
        return self._comm

    def gather(self, value: T) -> list[T] | None:
        return self._comm.gather(value, ROOT)

    def wait_for_all(self) -> None:
        self._comm.Barrier()

    def free(self) -> None:
        self._comm.Free()
