"""Going on without ranks that are gone: the messages of lockstep on a communicator that can shrink (MPI's ULFM).

When a rank is gone, some calls of the others raise: in one rank at once, in another not before it has ended its step.
Whoever sees it first revokes the communicator, which gets all others out of what they wait for; all make a new one
of those that are left; the root says at which order it is and sends that order again.  A rank that had it already
does nothing again: it only sends its slot once more, as it is.  So what the others give stays the same, byte for byte.

Two rules keep this free of waiting for each other.  No rank leaves before all have agreed, on the communicator that
they then have, that all have the last order.  And each communicator sees one agreement: "leave" of those that have the
last order, "go on" of those that are in trouble; one "go on" decides, and all come to shrink it.

An order with more than actions (a reset, a call by name) is not sent again: its round is void, `RankLost` is raised on
all ranks, the root ends the run, and the others wait for what it orders then.
"""

import os
from time import monotonic, sleep
from typing import Any

import numpy as np

from mpi_rollout.core.layout import LOST
from mpi_rollout.errors import LaunchError, RankLost, RolloutError, UsageError
from mpi_rollout.exchange.job_end import abort
from mpi_rollout.exchange.world import GRACE_S, ROOT, library_name
from mpi_rollout.process.console import say
from mpi_rollout.process.launcher import be_last

ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"  # What `mpirun --with-ft ulfm` sets.
TOLD_S = 5.0  # Until when the launcher has told of a loss, at the latest.
WAY_OUT = "without the option the job ends when a rank is lost, and the same command continues it"


def is_ulfm_on() -> bool:
    """Whether this process was started by `mpirun --with-ft ulfm`; without starting MPI, which cannot say it."""
    return os.environ.get(ULFM_VARIABLE, "").lower() in ("1", "t", "true", "enabled", "yes", "y")


def check_ulfm(comm: Any) -> None:
    """Raise UsageError or LaunchError where a job cannot go on without a rank."""
    if comm.size == 1:  # There may be no MPI at all.
        raise UsageError("--on-rank-loss shrink needs 2 ranks or more, got 1; use mpirun --with-ft ulfm -n 2")
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    if vendor != "Open MPI" or version < (5,):
        raise LaunchError(f"--on-rank-loss shrink needs Open MPI 5, mpi4py loaded {library_name()}; {WAY_OUT}")
    if not is_ulfm_on():
        raise LaunchError(f"--on-rank-loss shrink needs mpirun --with-ft ulfm, got a job without it; {WAY_OUT}")


class Surviving:
    """Bcast and Gatherv among the ranks that are left.

    It has the verbs of `messages.Lockstep`, and for what happens rarely those of a communicator that it needs.

    Parameters
    ----------
    slots
        (num_ranks, nbytes) on the root, else None.  A lost rank's row stays as it is.

    Attributes
    ----------
    rank
        At the start, as all ranks that are spoken of here.
    ranks
        Those that are left.
    marks
        On the root those of the slots, to be set by whoever has laid them out.
    """

    def __init__(self, comm: Any, order: np.ndarray, slot: np.ndarray, slots: np.ndarray | None):
        from mpi4py import MPI

        self.comm, self.rank, self.ranks = comm, comm.rank, np.arange(comm.size)
        self.marks: np.ndarray | None = None
        self._group, self._hosts = comm.Get_group(), comm.gather(os.uname().nodename, ROOT)
        self._order, self._slots = [order, MPI.BYTE], slots
        self._own = [slot, MPI.BYTE] if slots is None else MPI.IN_PLACE  # The root's is already in its place.
        self._row = MPI.BYTE.Create_contiguous(slot.nbytes if slots is None else slots.shape[1]).Commit()
        self._aim()
        self._num_orders = 0  # Posted by the root; elsewhere received.
        self._is_plain = True  # The last one says all there is to say in its round.
        self._num_at_order = comm.size  # Ranks when it was posted.
        self._failed = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
        self._error = MPI.Exception

    def _aim(self) -> None:
        """Have each slot come to its own row."""
        self._all = None
        if self._slots is not None:
            self._all = [self._slots, np.ones(len(self.ranks), np.int32), self.ranks.astype(np.int32), self._row]

    def post_order(self) -> None:
        self._num_orders += 1
        self._is_plain, self._num_at_order = True, len(self.ranks)
        try:
            self.comm.Bcast(self._order, ROOT)
        except self._error as error:
            self._recover(error)

    def await_order(self) -> None:
        while True:
            try:
                self.comm.Bcast(self._order, ROOT)
                break
            except self._error as error:
                self._recover(error, has_slot=True)
        self._num_orders += 1

    def post_slot(self) -> None:
        self._gather()

    def await_slots(self) -> None:
        self._gather()

    def _gather(self) -> None:
        try:
            self.comm.Gatherv(self._own, self._all, ROOT)
        except self._error as error:
            self._recover(error, has_slot=True, is_void=not self._is_plain)

    def spread(self, value: Any = None) -> Any:
        """Broadcast a Python object of the root, pickled, after an order."""
        return self.bcast(value, ROOT)

    def bcast(self, value: Any, root: int) -> Any:
        """Broadcast a Python object, pickled."""
        self._is_plain = False
        while True:
            try:
                if len(self.ranks) == self._num_at_order or self.rank != ROOT:
                    return self.comm.bcast(value, root)
                self._recover(None, is_void=True)  # The order had to be sent again.
            except self._error as error:
                self._recover(error, is_void=True)

    def gather(self, value: Any, root: int) -> list[Any] | None:
        """Gather a Python object of each rank, pickled."""
        try:
            return self.comm.gather(value, root)
        except self._error as error:
            return self._recover(error, is_void=True)

    def Barrier(self) -> None:  # noqa: N802  As mpi4py has it.
        try:
            self.comm.Barrier()
        except self._error as error:
            self._recover(error, is_void=True)

    def _recover(self, error: Exception | None, has_slot: bool = False, is_void: bool = False) -> None:
        """Go on with the ranks that are left.  **Collective** of these, wherever each of them is.

        Parameters
        ----------
        error
            None: it is this rank's own wish.
        has_slot
            The round is at its slots: those that were sent are sent again.
        is_void
            On the root: the last order is not to be sent again.

        Raises
        ------
        RankLost
            The round is void.
        """
        while True:
            self._check(error)
            self.comm.Revoke()
            self._agree(False)
            try:
                return self._begin_again(has_slot, is_void)
            except self._error as another:  # Another loss meanwhile.
                error = another

    def _check(self, error: Any) -> None:
        """Raise an error that has another cause than a lost rank.

        Open MPI gives what its transport says where that finds a rank gone before the launcher has told so.
        """
        if error is None or error.Get_error_class() in self._failed:
            return
        deadline = monotonic() + TOLD_S
        while not (self.comm.Is_revoked() or self.comm.Get_failed().size):
            if monotonic() > deadline:
                raise error
            self.comm.Ack_failed()
            sleep(0.001)

    def _begin_again(self, has_slot: bool, is_void: bool) -> None:
        """Shrink, and come together at the root's order."""
        before = self.ranks
        self._shrink()
        if self.marks is not None:  # Now: what follows may fail, and begin again with the ranks of now.
            self.marks[np.setdiff1d(before, self.ranks)] = LOST
        state = np.array([self._num_orders, is_void])
        self.comm.Bcast(state, ROOT)
        num_orders, is_void = state.tolist()
        if is_void:
            self._num_orders = num_orders
            raise RankLost(f"lost {self._take_names()} between two steps")
        if num_orders == self._num_orders:
            self.comm.Bcast(self._order, ROOT)
            if has_slot:
                self.comm.Gatherv(self._own, self._all, ROOT)

    def _shrink(self) -> None:
        from mpi4py import MPI

        comm = self.comm.Shrink()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        group = comm.Get_group()
        self.comm, self.ranks = comm, np.array(group.Translate_ranks(None, self._group))
        group.Free()
        if self.ranks[0] != ROOT:
            if comm.rank == 0:
                say("mpi_rollout: lost rank 0, which writes the file; the same command continues the run\n")
            else:
                sleep(GRACE_S)  # One tells for all, and aborts.
            abort(comm, RolloutError.exit_code)
        if comm.size == 1:
            be_last()
        self._aim()

    def _agree(self, is_leaving: bool) -> bool:
        """Whether all ranks that are left want to leave.  **Collective**, also when the communicator is revoked."""
        self.comm.Ack_failed()
        try:
            return bool(self.comm.Agree(int(is_leaving)))
        except self._error as error:  # On all ranks alike.
            self._check(error)
            return False

    def _take_names(self) -> str:
        """Say on the root which ranks are marked as lost, once."""
        if self.marks is None:
            return "ranks"
        lost = np.flatnonzero(self.marks == LOST)
        self.marks[lost] = 0
        return ", ".join(f"rank {rank} ({self._hosts[rank]})" for rank in lost)

    def listen(self) -> None:
        pass

    def finish(self) -> None:
        """Wait until all that are left have the last order."""
        while not self._agree(True):
            try:
                self._begin_again(has_slot=False, is_void=False)
            except self._error as error:
                self._recover(error)

    def free(self) -> None:
        pass

    def Free(self) -> None:  # noqa: N802
        self._row.Free()

    def Abort(self, code: int) -> None:  # noqa: N802
        self.comm.Abort(code)
