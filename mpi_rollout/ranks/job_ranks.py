"""The groups of ranks that make each env together: how they form, prepare, and are let go.

Only the first rank of each group, and a root without envs, take part in what the rest of the program knows as the ranks
of a job: `JobRanks.comm`.  The others are members.
"""

import atexit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from time import sleep
from typing import TYPE_CHECKING, NoReturn, TypeVar

from mpi_rollout.core.partition import EnvRanks
from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.member import Member
from mpi_rollout.errors import EnvError, RolloutError, as_flag
from mpi_rollout.exchange.job_end import abort, end_timeout_s
from mpi_rollout.exchange.waiting import way_to_wait
from mpi_rollout.exchange.world import ROOT, ROOT_FIRST_S, rank_and_host, split
from mpi_rollout.options import SharedOptions
from mpi_rollout.process.console import say
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.ranks.agreement import agree, as_refusals
from mpi_rollout.ranks.set_up import Plan
from mpi_rollout.ranks.watchdog import CLOSE_LIMIT_S, CLOSE_NOTE_S, Watchdog, Work

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
MEMBER_SHARE = 0.9  # Of the time that `close` has on the first rank: that one hears from the member then.


@dataclass(frozen=True)
class JobRanks:
    """The ranks of a job, as this one sees them.

    Attributes
    ----------
    job
        All of them.
    comm
        Those that take part in the exchange, all where each env is made on one rank; on a member, of no use.
    first_ranks
        Their numbers in the job.
    group
        The ranks that make each env of this one; None where that is this one alone, or where it has no envs.
    wait
        How ranks wait, as in `Plan`.
    """

    job: "MPI.Intracomm"
    comm: "MPI.Intracomm"
    first_ranks: tuple[int, ...]
    group: EnvGroup | None
    wait: str

    @property
    def is_member(self) -> bool:
        """Whether this rank only does what the first one of its group does."""
        return self.group is not None and self.group.comm.rank > 0

    def member(self, make_maker: Callable[[], EnvMaker]) -> Member:
        """Return what serves the first rank of the group, with its part of the envs of a maker."""
        assert self.group is not None, "a member is in a group"
        NOTICES.hold()  # The first rank says the same.
        maker = cache(lambda: replace(make_maker(), group=self.group))  # It may raise.
        return Member(self.group, lambda index: maker().unwrapped(index - maker().first_env), self.job)

    def closing(self, what: str) -> Watchdog:
        """Interrupt the `close` of an env on a member, or else end the job, a little before the first rank gives up."""

        def give_up(why: str) -> NoReturn:
            say(f"mpi_rollout: {why}\n")
            abort(self.job, EnvError.exit_code)

        limit_s = MEMBER_SHARE * end_timeout_s(CLOSE_LIMIT_S)

        def tell(why: str) -> None:
            say(f"mpi_rollout: {why}\n")

        return Watchdog(lambda: Work(what, lambda: what), limit_s, tell, give_up, CLOSE_NOTE_S)

    def completed(self, plan: Plan) -> Plan:
        """Return the plan with what follows from these ranks."""
        make = replace(plan.make, group=self.group)
        return replace(plan, make=make, wait=self.wait, ranks=plan.ranks or self.first_ranks)

    def let_go(self, result: object = None) -> None:
        """Let the members of this rank's group go on, with the result of their `serve`."""
        if self.group is not None:
            self.group.let_go(result)

    def prepare(self, prepare: Callable[[], T]) -> T:
        """Prepare with the members of the group, and let them go on then.

        If a member does not come back from the making of an env, nobody could agree on the failure: it ends the job.
        """
        try:
            with as_refusals():
                return prepare()
        except RolloutError as error:
            if self.group is not None and self.group.is_broken:
                place = rank_and_host(self.job.rank)
                say(f"{error.stack}mpi_rollout: {place}: {error.shown(as_flag)}\n")
                abort(self.job, error.exit_code)
            raise
        finally:
            self.let_go()

    def end_broken_group(self, code: int) -> None:
        """End the job when this process ends, if a member of its group hangs in an env and would never end."""
        if self.group is not None and self.group.is_broken:
            atexit.register(self._end, code or EnvError.exit_code)

    def _end(self, code: int) -> NoReturn:
        if self.job.rank != ROOT:  # The root comes first: it says why.
            sleep(ROOT_FIRST_S)
        abort(self.job, code)

    def free(self) -> None:
        """Give back the communicators that were made for these ranks, if all of them can hear it.  **Collective**."""
        if self.group is not None and not self.group.is_broken:
            self.group.free()
        if self.comm and self.comm is not self.job:
            self.comm.Free()

    def hosts_of(self, hosts: list[str]) -> list[str]:
        """Return the hosts of the first ranks, of those of all ranks; none where these are not known."""
        return [hosts[rank] for rank in self.first_ranks] if hosts else []


def join(
    options: SharedOptions, comm: "MPI.Intracomm", timeout_s: float, limit: str, marks: Callable[[], Mapping[str, str]]
) -> JobRanks:
    """Form the groups that make envs together.  **Collective**.

    `marks` must be the same on all ranks, see `agree`.  Where each env is made on one rank, nothing is sent.

    RolloutError on all ranks alike if so many ranks cannot be divided.
    """
    if options.ranks_per_env == 1:
        return JobRanks(comm, comm, tuple(range(comm.size)), None, options.wait)

    def divide(nodes: tuple[str, ...]) -> EnvRanks:
        options.check()
        return EnvRanks(nodes, options.ranks_per_env, options.root_envs)

    _, hosts = agree(comm, lambda: divide(("",) * comm.size), lambda _: dict(marks()), timeout_s, limit)
    ranks = divide(tuple(comm.bcast(hosts, ROOT)))
    for group in ranks.scattered if comm.rank == ROOT else ():
        names = ", ".join(dict.fromkeys(ranks.nodes[rank] for rank in group))
        say(f"mpi_rollout: ranks {', '.join(map(str, group))} make envs together, but are on several nodes: {names}\n")
    way = way_to_wait(comm) if options.wait == "auto" else options.wait
    own = ranks.group_of(comm.rank)
    of_env = split(comm, own[0] if own else None)
    of_first_ranks = split(comm, 0 if comm.rank in ranks.first_ranks else None)
    return JobRanks(comm, of_first_ranks, ranks.first_ranks, EnvGroup(of_env, own, way) if own else None, way)
