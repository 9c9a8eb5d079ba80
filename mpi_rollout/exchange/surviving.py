"""Going on without lost ranks: the messages of lockstep on a communicator that can shrink (MPI's ULFM).

When a rank is gone, some calls of the others raise: in one rank at once, in another after it has ended its step.  The
rank that sees it first revokes the communicator, which ends the waits of all others.  All make a new communicator of
the ranks that are left.  The root says at which order it is and sends that order again.  A rank that had it already
repeats nothing: it only sends its slot once more, as it is.  So the data of the others stay the same, byte for byte.

Two rules prevent a deadlock.  No rank leaves before all have agreed, on the communicator that they have then, that all
have the last order.  And each communicator sees one agreement: ranks that have the last order say "leave", ranks in
trouble say "go on".  One "go on" decides, and all shrink the communicator.

An order with more than actions (a reset, a call of a service) is not sent again.  Its round is void: `RankLost` is
raised on all ranks, the root ends the run, and the others wait for its next order.
"""

import os
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from mpi_rollout.core.layout import LOST
from mpi_rollout.errors import LaunchError, RankLost, RolloutError, UsageError
from mpi_rollout.exchange.control import Control
from mpi_rollout.exchange.job_end import abort
from mpi_rollout.exchange.transports import Buffers, CollectiveTransport
from mpi_rollout.exchange.world import ROOT, ROOT_FIRST_S, library_name
from mpi_rollout.process.console import say
from mpi_rollout.process.launcher import be_last

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

ULFM_VARIABLE = "OMPI_MCA_mpi_ft_enable"  # What `mpirun --with-ft ulfm` sets.
REPORT_S = 5.0  # The launcher reports a loss within this time.
WAY_OUT = "without the option the job ends when a rank is lost, and the same command continues it"


def is_ulfm_on() -> bool:
    """Tell whether `mpirun --with-ft ulfm` started this process.  MPI itself cannot tell, and is not started."""
    return os.environ.get(ULFM_VARIABLE, "").lower() in ("1", "t", "true", "enabled", "yes", "y")


def check_ulfm(comm: "MPI.Intracomm") -> None:
    """Raise UsageError or LaunchError where a job cannot go on without a rank."""
    if comm.size == 1:  # There may be no MPI at all.
        raise UsageError("--on-rank-loss shrink needs 2 ranks or more, got 1; use mpirun --with-ft ulfm -n 2")
    from mpi4py import MPI

    vendor, version = MPI.get_vendor()
    if vendor != "Open MPI" or version < (5,):
        raise LaunchError(f"--on-rank-loss shrink needs Open MPI 5, mpi4py loaded {library_name()}; {WAY_OUT}")
    if not is_ulfm_on():
        raise LaunchError(f"--on-rank-loss shrink needs mpirun --with-ft ulfm, got a job without it; {WAY_OUT}")


class ShrinkingTransport(CollectiveTransport):
    """Bcast and Gatherv among the ranks that are left: `ranks`, numbered as they were at the start.

    A lost rank's slot stays as it is, but for the mark `LOST`.
    """

    def __init__(self, buffers: Buffers) -> None:
        from mpi4py import MPI

        super().__init__(buffers)
        comm, slot = self.comm, buffers.slots.own
        assert slot is not None, "all ranks have slots"
        self.rank, self.ranks = comm.rank, np.arange(comm.size)
        self._group, self._hosts = comm.Get_group(), comm.gather(os.uname().nodename, ROOT)
        self._lost_ranks: list[int] = []  # The root has not told anybody of them yet.
        self._row, self._num_rows = MPI.BYTE.Create_contiguous(slot.shape[-1]).Commit(), 1
        self._num_orders = 0  # Posted by the root; elsewhere received.
        self._is_plain = True  # The last order is all there is to say in its round.
        self._num_at_order = comm.size  # As many ranks there were when the last order was sent.
        self._failed = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
        self._error = MPI.Exception

    def _gather_from_here(self, num_rows: int) -> Callable[[], object]:
        return partial(self.comm.Gatherv, (self._slots.own, num_rows, self._row), None, ROOT)

    def _gather_to_here(self, num_rows: int) -> Callable[[], object]:
        """Make the root's call: the first rows of each rank come to their own place."""
        from mpi4py import MPI

        slots = self._slots.all
        assert slots is not None, "the root has all slots"
        parts = np.full(len(self.ranks), num_rows), self.ranks * slots.shape[1]
        return partial(self.comm.Gatherv, MPI.IN_PLACE, (slots, parts, self._row), ROOT)

    def send_order(self) -> None:
        self._num_orders += 1
        self._is_plain, self._num_at_order = True, len(self.ranks)
        try:
            super().send_order()
        except self._error as error:
            self._recover(error)

    def receive_order(self) -> None:
        while True:
            try:
                super().receive_order()
                break
            except self._error as error:
                self._recover(error, has_slot=True)
        self._num_orders += 1

    def send_slot(self, num_rows: int) -> None:
        self._exchange_slots(num_rows)

    def receive_slots(self, num_rows: int) -> None:
        self._exchange_slots(num_rows)
        if self._lost_ranks:
            assert self._slots.marks is not None, "the root has the marks of all slots"
            self._slots.marks[self._lost_ranks] = LOST
            self._lost_ranks.clear()

    def _exchange_slots(self, num_rows: int) -> None:
        self._num_rows = num_rows
        try:
            self._gather_slots()
        except self._error as error:
            self._recover(error, has_slot=True, is_void=not self._is_plain)

    def _gather_slots(self) -> None:
        (super().receive_slots if self.rank == ROOT else super().send_slot)(self._num_rows)

    def send_bytes(self, data: np.ndarray) -> None:
        self._broadcast(data)

    def receive_bytes(self, data: np.ndarray) -> None:
        self._broadcast(data)

    def _broadcast(self, data: np.ndarray) -> None:
        self._is_plain = False
        while True:
            try:
                if len(self.ranks) == self._num_at_order or self.rank != ROOT:
                    self.comm.Bcast((data.data, self._byte), ROOT)
                    return
                self._recover(None, is_void=True)  # The order had to be sent again.
            except self._error as error:
                self._recover(error, is_void=True)

    def call(self, call: "Callable[[MPI.Intracomm], T]") -> T | None:
        """Make a call of all ranks between two orders.  `RankLost` if a rank is lost in it."""
        try:
            return call(self.comm)
        except self._error as error:
            self._recover(error, is_void=True)
            return None

    def _recover(self, error: "MPI.Exception | None", has_slot: bool = False, is_void: bool = False) -> None:
        """Go on with the ranks that are left.  **Collective** of these, wherever each of them is.

        `has_slot` says that the round is at its slots, which are then sent again; `is_void`, on the root, that the last
        order must not be sent again: then `RankLost` is raised.
        """
        while True:
            self._check(error)
            self.comm.Revoke()
            self._agree(False)
            try:
                return self._begin_again(has_slot, is_void)
            except self._error as next_error:  # Another loss meanwhile.
                error = next_error

    def _check(self, error: "MPI.Exception | None") -> None:
        """Raise an error that has another cause than a lost rank.

        Open MPI gives the error of its transport if that finds a rank gone before the launcher has reported it.
        """
        if error is None or error.Get_error_class() in self._failed:
            return
        deadline = monotonic() + REPORT_S
        while not (self.comm.Is_revoked() or self.comm.Get_failed().size):
            if monotonic() > deadline:
                raise error
            self.comm.Ack_failed()
            sleep(0.001)

    def _begin_again(self, has_slot: bool, is_void: bool) -> None:
        """Shrink the communicator, and meet at the root's order."""
        before = self.ranks
        self._shrink()
        # This comes first: the rest may fail, and begin again with the ranks that are left.
        self._lost_ranks += np.setdiff1d(before, self.ranks).tolist()
        state = np.array([self._num_orders, is_void])
        self.comm.Bcast(state, ROOT)
        num_orders, is_void = state.tolist()
        if is_void:
            self._num_orders = num_orders
            raise RankLost(f"lost {self._take_names()} between two steps")
        if num_orders == self._num_orders:
            self.comm.Bcast(self._order, ROOT)
            if has_slot:
                self._gather_slots()

    def _shrink(self) -> None:
        from mpi4py import MPI

        comm = cast("MPI.Intracomm", self.comm.Shrink())
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        group = comm.Get_group()
        self.comm, self.ranks = comm, np.array(group.Translate_ranks(None, self._group))
        group.Free()
        if self.ranks[0] != ROOT:
            if comm.rank == 0:
                say("mpi_rollout: lost rank 0, which writes the file; the same command continues the run\n")
            else:
                sleep(ROOT_FIRST_S)
            abort(comm, RolloutError.exit_code)
        if comm.size == 1:
            be_last()
        self._gathers.clear()

    def _agree(self, is_leaving: bool) -> bool:
        """Tell whether all ranks that are left want to leave.  **Collective**, even on a revoked communicator."""
        self.comm.Ack_failed()
        try:
            return bool(self.comm.Agree(int(is_leaving)))
        except self._error as error:  # All ranks raise it.
            self._check(error)
            return False

    def _take_names(self) -> str:
        """Return on the root the names of the ranks that have been lost since it last looked."""
        if self._hosts is None:
            return "ranks"
        names = ", ".join(f"rank {rank} ({self._hosts[rank]})" for rank in sorted(self._lost_ranks))
        self._lost_ranks.clear()
        return names

    def finish(self) -> None:
        """Do nothing: a blocking call returns when its buffer is free."""

    def free(self) -> None:
        """Wait until all ranks that are left have the last order, and leave together."""
        while not self._agree(True):
            try:
                self._begin_again(has_slot=False, is_void=False)
            except self._error as error:
                self._recover(error)
        self._row.Free()


class SurvivingControl(Control):
    """Rare messages among the ranks that are left, on the communicator of their transport.

    It is the only one, so all ranks send the same messages in the same order.
    """

    def __init__(self, transport: ShrinkingTransport) -> None:
        self._transport = transport

    @property
    def comm(self) -> "MPI.Intracomm":
        return self._transport.comm

    def gather(self, value: T) -> list[T] | None:
        return self._transport.call(lambda comm: comm.gather(value, ROOT))

    def wait_for_all(self) -> None:
        self._transport.call(lambda comm: comm.Barrier())

    def free(self) -> None:
        """Do nothing: nobody knows whether all ranks are there to free a communicator that shrinks together."""
