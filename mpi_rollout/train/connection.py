"""The life of a connection: the ranks meet and agree; then the root drives the envs, and the other ranks serve it.

In one process there is nobody to meet: the envs are there at once, and the end of the program closes them.  The ranks
of a job serve one connection at a time.
"""

import atexit
import gc
import os
import sys
import threading
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet, finalize

from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import RolloutError, StorageError, UsageError
from mpi_rollout.exchange import job_end, world
from mpi_rollout.process import exits, rank_variables
from mpi_rollout.process.console import say, without_stdin
from mpi_rollout.process.interrupts import Interrupts, exit_by_signals, is_main_thread, unheeded
from mpi_rollout.process.paths import started_in
from mpi_rollout.ranks.set_up import unwatched_by_gc
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.text import traceback_of
from mpi_rollout.train.agents import form_of
from mpi_rollout.train.closing import OfOneJob, close, hint
from mpi_rollout.train.ends import LEAVE_S, RootEnd
from mpi_rollout.train.meeting import Meeting
from mpi_rollout.train.recording import start_recording
from mpi_rollout.train.request import Request
from mpi_rollout.train.vector_env import MPIVectorEnv

if TYPE_CHECKING:
    from mpi4py import MPI


class Connection(OfOneJob):
    """What `connect` returns where there are several ranks: use it in a `with` statement, once."""

    _meeting: Meeting  # From the moment of entering on.

    def __init__(self, request: Request, comm: "MPI.Intracomm | None", timeout_s: float):
        self._request, self._given_comm, self._timeout_s = request, comm, timeout_s
        self._envs: MPIVectorEnv | None = None

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"with several ranks, connect gives envs in a with statement only, got .{name} without one; "
            "write `with mpi_rollout.connect(...) as envs:`"
        )

    def __enter__(self) -> MPIVectorEnv | None:
        rank = world.claimed_rank() if self._given_comm is None else self._given_comm.rank
        # From here on the trainer handles the signals of the other ranks, also while envs are being made.
        with unheeded() if rank != world.ROOT and is_main_thread() else nullcontext():
            try:
                self._enter()
            except RolloutError as error:
                # The caller has no use for our frames.
                raise error.with_traceback(None) from error.__cause__
        return self._envs

    def _enter(self) -> None:
        if self._given_comm is None:
            world.start_mpi_on_all_ranks(self._timeout_s)
        else:
            rank_variables.take()  # Who has given it has started MPI.
        comm = world.comm_world() if self._given_comm is None else self._given_comm
        if comm.size == 1:
            self._open_alone(comm)
            return
        if _open or _entered:
            raise UsageError(
                "connect while another connection of this job is open: its ranks serve one at a time; leave the with "
                "statement of that one first, or evaluate on rank 0 in a local env, as gymnasium.make(...) or "
                "gymnasium.vector.SyncVectorEnv([...])"
            )
        _open.add(self)
        try:
            self._drive_ranks(comm) if comm.rank == world.ROOT else self._serve(comm)
        except BaseException:
            _open.discard(self)
            raise
        _entered.add(self)

    def _open_alone(self, comm: "MPI.Intracomm") -> None:
        self._meeting = Meeting(self._request, comm, self._timeout_s)
        self._envs = envs = self._drive(None)
        finalize(envs, close, envs.end, os.getpid())

    def _drive_ranks(self, comm: "MPI.Intracomm") -> None:
        """Meet the other ranks, and drive them."""
        if _ends:  # Closed ones lie in cycles, with shared slots and a descriptor of these.
            gc.collect()
        self._meeting = Meeting(self._request, comm, self._timeout_s)
        until_closed = ExitStack()
        until_closed.callback(_open.discard, self)
        until_closed.callback(self._meeting.ranks.free)
        self._envs = envs = self._drive(until_closed)
        _ends.add(envs.end)
        until_closed.enter_context(job_end.no_early_end(comm))

    def _serve(self, comm: "MPI.Intracomm") -> None:
        """Meet the other ranks, and obey the root."""
        with without_stdin():
            try:
                self._meeting = meeting = Meeting(self._request, comm, self._timeout_s)
                server = meeting.join_group() if meeting.ranks.is_member else meeting.make().worker
            except RolloutError as error:
                sys.exit(error.exit_code)  # The root says why.
            with job_end.all_or_none(comm), job_end.no_early_end(comm), unwatched_by_gc(), unheeded():
                code = server.serve()
                if isinstance(server, Worker):
                    server.exchanges.free()
                meeting.ranks.free()
        _open.discard(self)
        meeting.ranks.end_broken_group(code)
        job_end.watch_end(comm, code)
        if code:
            sys.exit(code)  # The trainer has failed.

    def _drive(self, until_closed: ExitStack | None) -> MPIVectorEnv:
        """Make the vector env; `until_closed` are contexts to leave with the other ranks, None where there are none."""
        request, rank = self._request, self._meeting.make()
        interrupts = Interrupts(rank.worker.is_in_envs)
        driver = Driver(rank.worker.exchanges, rank.worker, request.actions, "the action", on_cut=interrupts.note_cut)
        end = RootEnd(driver, rank.facts, request.mode, interrupts, until_closed)
        try:
            form = form_of(rank.facts.observation_space, rank.facts.action_space, request.agents)
            policy = None
            if request.policy is not None:
                with interrupts, started_in(self._meeting.folder):
                    policy = request.policy_on_ranks(driver)
            envs = MPIVectorEnv(
                driver, rank.facts, request.mode, end, request.batch_size or 1, request.copy, form, policy
            )
            if (path := self._meeting.record) is not None:
                end.begin_recording(start_recording(path, request, driver, rank.facts, rank.hosts))
                exit_by_signals()
        except BaseException as error:
            end.close(getattr(error, "exit_code", RolloutError.exit_code))
            raise
        return envs

    def __exit__(self, kind: type | None, error: BaseException | None, _traceback: object) -> None:
        _entered.discard(self)
        if error is not None:
            exits.end_if_forked(error)
            if self._envs is None:
                hint(error, self._meeting.comm.rank)
        if self._envs is None or exits.is_forked():
            return
        code, interrupts = exits.exit_code_of(error), self._envs.interrupts
        watch = threading.Timer(LEAVE_S, self._abort, (error, code))
        watch.daemon = True
        # It cannot be known whether the ranks answer, or whether the call of another thread ends.
        if error is not None or interrupts.is_broken or interrupts.calls.is_of_another_thread:
            watch.start()
        try:
            self._envs.end.finish_recording()  # Launchers end the job when other ranks leave with a failure.
        except StorageError as failure:
            code = code or failure.exit_code
            raise
        finally:
            self._let_out(self._envs, watch, code)

    def _let_out(self, envs: MPIVectorEnv, watch: threading.Timer, code: int) -> None:
        """Let the other ranks out; `watch` ends the job if they do not hear it."""
        envs.close(code=code)
        watch.cancel()
        self._meeting.ranks.end_broken_group(code)
        if self._meeting.comm.size > 1:
            job_end.watch_end(self._meeting.comm, code)

    def _abort(self, error: BaseException | None, code: int) -> None:
        if error is not None:
            say(traceback_of(error))
        say(f"mpi_rollout: the trainer left while ranks were stepping; ended them after {LEAVE_S:g} s\n")
        job_end.abort(self._meeting.comm, code or RolloutError.exit_code)

    def end_unclosed(self) -> None:
        """End the job at the interpreter's end while ranks still serve: they would hang it."""
        say(
            f"mpi_rollout: {world.rank_and_host(world.ROOT)}: the trainer ended without closing its envs; "
            "use `with mpi_rollout.connect(...) as envs:`, or call envs.close()\n"
        )
        if self._envs is not None and self._envs.interrupts.are_free_within(LEAVE_S):
            self._envs.end.finish_recording()
        job_end.abort(self._meeting.comm, RolloutError.exit_code)


# The connection whose ranks are not let out yet, on all its ranks.  It keeps the envs, also if the program drops them.
_open: set[Connection] = set()
# Those whose with statement this rank is in.  Weak, for those that are entered by hand, and never left.
_entered: WeakSet[Connection] = WeakSet()
_ends: WeakSet[RootEnd] = WeakSet()  # Of this rank as the root of others, as long as something keeps them.


@atexit.register
def _check_closed() -> None:
    for connection in () if exits.is_forked() else tuple(_open):
        connection.end_unclosed()
