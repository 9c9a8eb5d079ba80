"""The life of a connection: the ranks meet and agree; then the root drives the envs, and the other ranks serve it.

In one process there is nobody to meet: the envs are there at once, and the end of the program closes them.  Several
connections over the same ranks take turns.
"""

import gc
import json
import os
import sys
import threading
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet, finalize

import cloudpickle

from mpi_rollout.config import versions
from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import RolloutError, StorageError, UsageError
from mpi_rollout.exchange import job_end, world
from mpi_rollout.process import exits, hash_seed, rank_variables
from mpi_rollout.process.console import say, without_stdin
from mpi_rollout.process.interrupts import exit_by_signals, is_main_thread, unheeded
from mpi_rollout.process.paths import current, located, started_in
from mpi_rollout.ranks import agreement
from mpi_rollout.ranks.job_ranks import JobRanks, join
from mpi_rollout.ranks.set_up import EnvFacts, RankEnvs, assemble, make_rank_envs, unwatched_by_gc
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.storage.values import check_storable
from mpi_rollout.text import traceback_of
from mpi_rollout.train.agents import form_of
from mpi_rollout.train.closing import OPEN_TURNS, OfOneJob, close, hint
from mpi_rollout.train.ends import LEAVE_S, RootEnd, Turns, serve
from mpi_rollout.train.recording import check_record, start_recording, types_of
from mpi_rollout.train.request import Request
from mpi_rollout.train.vector_env import MPIVectorEnv

if TYPE_CHECKING:
    from mpi4py import MPI

MEETING = "mpi_rollout.connect"  # What ranks that wait for others are said to have called.


class Connections:
    """Opens one more connection on every rank, as a `Service`: where one is open, the other ranks serve it.

    `turns` are those of a worker.  They are None on the root, which is itself entering that connection.
    """

    name = "connections"

    def __init__(self, comm: "MPI.Intracomm", ranks: JobRanks, timeout_s: float, turns: Turns[Worker] | None):
        self._comm, self._ranks, self._timeout_s, self._turns = comm, ranks, timeout_s, turns

    def open(self, request: bytes) -> None:
        """Make the connection of a pickled request."""
        turns = self._turns
        another = _entering[0] if turns is None else Connection(request, self._comm, self._timeout_s)
        another._ranks = self._ranks
        try:
            another._made = another._make(turns)
        except RolloutError as error:  # All ranks raise it.
            another._made = error
            return
        if turns is not None:
            turns.add(another._made[0])


class Connection(OfOneJob):
    """What `connect` returns where there are several ranks: use it in a `with` statement, once.

    All ranks agree on the request; it is pickled where the root has sent it.
    """

    _ranks: JobRanks
    _comm: "MPI.Intracomm"  # COMM_WORLD from the moment of entering on, where none is given.

    def __init__(self, request: Request | bytes, comm: "MPI.Intracomm | None", timeout_s: float = 0.0):
        self._request, self._given_comm, self._timeout_s = request, comm, timeout_s
        if comm is not None:
            self._comm = comm
        self._envs: MPIVectorEnv | None = None
        self._record: str | None = None
        self._hosts: dict[int, str] = {}
        self._made: tuple[Worker, EnvFacts] | RolloutError | None = None

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
        if self._comm.size > 1:
            _entered.add(self)
        return self._envs

    def _enter(self) -> None:
        if self._given_comm is None:
            world.start_mpi_on_all_ranks(self._timeout_s)
        else:
            rank_variables.take()  # Who has given it has started MPI.
        comm = self._comm = world.comm_world() if self._given_comm is None else self._given_comm
        is_inside = any(world.shared_ranks(other._comm, comm) == "all" for other in _entered)
        if comm.rank == world.ROOT:
            num_known = len(OPEN_TURNS)
            OPEN_TURNS[:] = [turns for turns in OPEN_TURNS if turns.open]
            if len(OPEN_TURNS) < num_known:  # Closed ones lie in cycles, with shared slots and a descriptor of these.
                gc.collect()
            open_ones = [turns for turns in OPEN_TURNS if world.shared_ranks(turns.comm, comm) != "none"]
            self._open_beside(open_ones[0]) if open_ones else self._open(is_inside)
        elif not is_inside:  # What is opened inside of another connection is served with that one.
            with without_stdin():
                self._serve()

    def _open(self, is_inside: bool) -> None:
        """Meet the other ranks, if there are any, and drive them."""
        if is_inside:
            raise UsageError(
                "connect in the with statement of a connection that is closed: the other ranks are past it already; "
                "leave that with statement first"
            )
        agreement.meet(self._comm, self._timeout_s, MEETING)
        turns: Turns[RootEnd] = Turns(self._comm)
        self._join()
        turns.kept.callback(self._ranks.free)
        self._drive(turns, *self._make(None))
        if self._comm.size > 1:
            OPEN_TURNS.append(turns)
            turns.kept.enter_context(job_end.no_early_end(self._comm))

    def _open_beside(self, turns: Turns[RootEnd]) -> None:
        """Let the ranks that serve another connection make these envs too."""
        if world.shared_ranks(turns.comm, self._comm) == "some":
            raise UsageError(
                "connect over some of the ranks that serve a connection which is open; give both the same comm, or "
                "close that one first"
            )
        if any(each._loaded_request().ranks_per_env > 1 for each in (self, *_entered)):
            raise UsageError(
                "connect while another connection is open is for envs of one rank each, got ranks_per_env on one of "
                "them; close that one first"
            )
        pickled = self._loaded_request().pickled("while a connection is open, what another one is told")
        _entering.append(self)
        try:
            turns.holder.ask("connect", turns.holder.service(Connections).open, pickled)
        finally:
            _entering.clear()
        if isinstance(self._made, RolloutError):
            raise self._made
        assert self._made is not None, "all ranks have called `Connections.open`"
        self._drive(turns, *self._made)

    def _serve(self) -> None:
        """Meet the other ranks, and obey the root."""
        agreement.meet(self._comm, self._timeout_s, MEETING)
        turns: Turns[Worker] = Turns(self._comm)
        try:
            self._join()
            turns.kept.callback(self._ranks.free)
            if self._ranks.is_member:
                member = self._ranks.member(lambda: self._loaded_request().make)
                with job_end.no_early_end(self._comm):
                    agreement.agree(self._comm, member.serve, lambda _: {}, self._timeout_s)
            else:
                member = None
                turns.add(self._make(turns)[0])
        except RolloutError as error:
            sys.exit(error.exit_code)  # The root says why.
        with job_end.all_or_none(self._comm), job_end.no_early_end(self._comm), unwatched_by_gc(), unheeded():
            code = serve(turns) if member is None else member.serve()
            turns.kept.close()
        self._ranks.end_broken_group(code)
        job_end.watch_end(self._comm, code)
        if code:
            sys.exit(code)  # The trainer has failed.

    def _join(self) -> None:
        """Form the groups of ranks that make envs together.  **Collective**."""
        self._ranks = join(self._loaded_request(), self._comm, self._timeout_s, "timeout_s", self._marks)

    def _make(self, turns: Turns[Worker] | None) -> tuple[Worker, EnvFacts]:
        """Agree with the other ranks, and make envs and exchanges; `turns` are those of a worker.  **Collective**."""
        comm, ranks = self._comm, self._ranks
        timeout_s = self._timeout_s if comm.size > 1 else inf  # A user of one process sees that envs hang.
        with nullcontext() if comm.size == 1 else job_end.no_early_end(comm):
            prepare = partial(ranks.prepare, self._prepare)
            rank_envs, hosts = agreement.agree(comm, prepare, self._fingerprint, timeout_s)
            self._hosts = dict(zip(ranks.first_ranks, ranks.hosts_of(hosts), strict=False))
            with job_end.all_or_none(comm):
                parts = assemble(ranks.comm, rank_envs)
                worker = parts.worker([Connections(comm, ranks, timeout_s, turns)])
        return worker, parts.facts

    def _drive(self, turns: Turns[RootEnd], worker: Worker, facts: EnvFacts) -> None:
        request, is_alone = self._loaded_request(), self._comm.size == 1
        driver = Driver(worker.exchanges, worker, request.actions, "the action")
        form = form_of(facts.observation_space, facts.action_space, request.agents)
        sizes = request.batch_size or 1, request.copy
        self._envs = envs = MPIVectorEnv(driver, facts, request.mode, *sizes, None if is_alone else turns, form)
        if not is_alone:
            envs.end.envs = envs
            turns.add(envs.end)
        try:
            if request.policy is not None:
                with started_in(self._folder):
                    envs.use_policy(request.policy_on_ranks)
            if self._record is not None:
                envs.end.recorder = start_recording(self._record, request, driver, facts, self._hosts)
                exit_by_signals()
        except BaseException as error:
            envs.close(code=getattr(error, "exit_code", RolloutError.exit_code))
            raise
        if is_alone:
            finalize(envs, close, envs.end, os.getpid())

    def _prepare(self) -> RankEnvs:
        world.check_thread()
        comm = self._comm
        if comm.rank != world.ROOT and not is_main_thread():
            raise UsageError(
                "connect must be called in the main thread of all ranks but rank 0, got thread "
                f"{threading.current_thread().name}: signals that interrupt envs reach that thread alone"
            )
        self._folder = current()  # Envs and trainers may change it.
        with started_in(self._folder):
            request = self._loaded_request()
            if request.record is not None:
                types_of(request.infos)
                self._record = located(str(request.record))
                if comm.rank == world.ROOT:
                    check_record(self._record, request.compression)
            ranks = self._ranks.comm
            rank_envs = make_rank_envs(self._ranks.completed(request.plan(ranks.size)), ranks.rank)
        if (facts := rank_envs.facts) is not None:
            form_of(facts.observation_space, facts.action_space, request.agents)
            if request.record is not None:
                check_storable(facts.observation_space, facts.action_space, "leave out record")
        return rank_envs

    def _loaded_request(self) -> Request:
        request = self._request
        if isinstance(request, bytes):
            self._request = request = cloudpickle.loads(request)
        return request

    def _marks(self) -> dict[str, str]:
        marks = {"the versions": json.dumps(versions()), hash_seed.VARIABLE: hash_seed.in_use()}
        return self._loaded_request().fingerprint() | marks

    def _fingerprint(self, rank_envs: RankEnvs) -> dict[str, str]:
        return self._marks() | rank_envs.fingerprint()

    def __exit__(self, kind: type | None, error: BaseException | None, _traceback: object) -> None:
        _entered.discard(self)
        if error is not None:
            exits.end_if_forked(error)
            if self._envs is None:
                hint(error, self._comm.rank)
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
        self._ranks.end_broken_group(code)
        if self._comm.size > 1:
            job_end.watch_end(self._comm, code)

    def _abort(self, error: BaseException | None, code: int) -> None:
        if error is not None:
            say(traceback_of(error))
        say(f"mpi_rollout: the trainer left while ranks were stepping; ended them after {LEAVE_S:g} s\n")
        job_end.abort(self._comm, code or RolloutError.exit_code)


# The connections whose with statement this rank is in.  Weak, for those that are entered by hand, and never left.
_entered: WeakSet[Connection] = WeakSet()
_entering: list[Connection] = []  # The one that the root opens while others are open.
