"""How all ranks of a connection meet, agree on its arguments, and make its envs."""

import json
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from mpi_rollout.config import versions
from mpi_rollout.envs.member import Member
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange import job_end, world
from mpi_rollout.process import hash_seed
from mpi_rollout.process.interrupts import is_main_thread
from mpi_rollout.process.paths import current, located, started_in
from mpi_rollout.ranks import agreement
from mpi_rollout.ranks.job_ranks import join
from mpi_rollout.ranks.set_up import EnvFacts, RankEnvs, assemble, make_rank_envs
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.storage.values import check_storable
from mpi_rollout.train.agents import form_of
from mpi_rollout.train.recording import check_record, types_of
from mpi_rollout.train.request import Request

if TYPE_CHECKING:
    from mpi4py import MPI

NAME = "mpi_rollout.connect"  # What ranks that wait for others are said to have called.


@dataclass(frozen=True)
class ConnectedRank:
    """What a rank has when all ranks have agreed: its envs at the root's service, and what these are."""

    worker: Worker
    facts: EnvFacts
    hosts: dict[int, str]  # Of the ranks that take part in the exchange.


class Meeting:
    """All ranks that have called `connect`, in the groups that make envs together.  **Collective**, as its methods."""

    def __init__(self, request: Request, comm: "MPI.Intracomm", timeout_s: float):
        self.request, self.comm, self._timeout_s = request, comm, timeout_s
        self.folder = current()  # Envs and trainers may change it.
        agreement.meet(comm, timeout_s, NAME)
        self.ranks = join(request, comm, timeout_s, "timeout_s", self._marks)

    @property
    def record(self) -> str | None:
        """The path of the file that the trainer wants, if any."""
        if self.request.record is None:
            return None
        with started_in(self.folder):
            return located(str(self.request.record))

    def make(self) -> ConnectedRank:
        """Agree with the other ranks, and make envs and exchanges."""
        comm, ranks = self.comm, self.ranks
        timeout_s = self._timeout_s if comm.size > 1 else inf  # A user of one process sees that envs hang.
        with nullcontext() if comm.size == 1 else job_end.no_early_end(comm):
            prepare = partial(ranks.prepare, self._prepare)
            rank_envs, hosts = agreement.agree(comm, prepare, self._fingerprint, timeout_s)
            with job_end.all_or_none(comm):
                parts = assemble(ranks.comm, rank_envs)
                worker = parts.worker()
        return ConnectedRank(worker, parts.facts, dict(zip(ranks.first_ranks, ranks.hosts_of(hosts), strict=False)))

    def join_group(self) -> Member:
        """Agree with the other ranks as a member; return what serves the first rank of this one's group."""
        member = self.ranks.member(lambda: self.request.make)
        with job_end.no_early_end(self.comm):
            agreement.agree(self.comm, member.serve, lambda _: {}, self._timeout_s)
        return member

    def _prepare(self) -> RankEnvs:
        world.check_thread()
        if self.comm.rank != world.ROOT and not is_main_thread():
            raise UsageError(
                "connect must be called in the main thread of all ranks but rank 0, got thread "
                f"{threading.current_thread().name}: signals that interrupt envs reach that thread alone"
            )
        request, ranks = self.request, self.ranks.comm
        with started_in(self.folder):
            if self.record is not None:
                types_of(request.infos)
                if self.comm.rank == world.ROOT:
                    check_record(self.record, request.compression)
            rank_envs = make_rank_envs(self.ranks.completed(request.plan(ranks.size)), ranks.rank)
        if (facts := rank_envs.facts) is not None:
            form_of(facts.observation_space, facts.action_space, request.agents)
            if request.record is not None:
                check_storable(facts.observation_space, facts.action_space, "leave out record")
        return rank_envs

    def _marks(self) -> dict[str, str]:
        marks = {"the versions": json.dumps(versions()), hash_seed.VARIABLE: hash_seed.in_use()}
        return self.request.fingerprint() | marks

    def _fingerprint(self, rank_envs: RankEnvs) -> dict[str, str]:
        return self._marks() | rank_envs.fingerprint()
