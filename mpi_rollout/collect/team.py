"""The team of this rank: the ranks that collect the same envs, and the root that drives them.

Usually all ranks are one team, and rank 0 drives it.  Where a run writes shards, there is a team for each of them:
teams are runs side by side, of some of the envs each, whose roots (`leaders`) meet now and then.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.config import RolloutConfig, part_of_run
from mpi_rollout.core.partition import Team, shards_of, teams_of
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.world import ROOT
from mpi_rollout.process.console import say
from mpi_rollout.ranks import agreement
from mpi_rollout.ranks.set_up import divided
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_rollout.storage.shard_set import ClaimedSet

NODES_VARIABLE = "MPI_ROLLOUT_NODES"  # For trials: so many nodes, whatever hosts there are.


@dataclass(frozen=True)
class RankTeam:
    """The team of this rank."""

    comm: "MPI.Intracomm"  # Of the team's ranks; those of the job are called `ranks`.
    config: RolloutConfig  # Of the run whose envs are the team's.
    whole: RolloutConfig
    team: Team  # Its ranks and shards; where the run writes one file, this is the only shard.
    teams: tuple[Team, ...]
    run: str = ""  # What all files of the set of shards have in common; "" where the run writes one file.
    leaders: Leaders | None = None  # On the root of a team, the messages to the other ones.
    hosts: tuple[str, ...] = ()  # On the root of a team, those of its ranks.
    shard_set: "ClaimedSet | None" = None  # On the root of the job.
    numbers: tuple[int, ...] = ()  # The numbers in the job of the ranks that are in teams, if these are not all.

    def free(self, comm: "MPI.Intracomm") -> None:
        """Give back the communicators that are not the job's own.  **Collective** of the team."""
        if self.leaders is not None:
            self.leaders.free(comm)
        if self.comm is not comm:
            self.comm.Free()

    @property
    def widest(self) -> int:
        """The most envs that one file has."""
        return max(len(envs) for team in self.teams for envs in team.shards)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.numbers[rank] for rank in self.team.ranks) if self.numbers else self.team.ranks

    @property
    def speaks(self) -> bool:
        """Whether this rank tells the user how the run goes on."""
        return self.ranks[self.comm.rank] == ROOT


def find_team(config: RolloutConfig, comm: "MPI.Intracomm") -> RankTeam:
    """Decide how the run is stored, and which ranks collect what.  **Collective**.

    RolloutError on all ranks alike, if there is something else where the shards would be.
    """
    if config.storage == "single":
        one = Team(tuple(range(comm.size)), (range(config.num_envs),))
        return RankTeam(comm, config, config, one, (one,))
    node = os.uname().nodename
    if (simulated := os.environ.get(NODES_VARIABLE, "")).isdigit():
        node = str(comm.rank * int(simulated) // comm.size)
    nodes = comm.gather(node, ROOT)
    plan, _ = agreement.agree(
        comm,
        lambda: None if nodes is None else _planned(config, nodes),
        lambda _: {"the configuration": config.to_json()},
        config.start_timeout_s,
        agreement.LIMIT,
    )
    shard_set, teams, run = (None, None, "") if plan is None else plan
    teams, run = comm.bcast((teams, run), ROOT)
    if teams is None:
        return find_team(replace(config, storage="single"), comm)
    team = _joined(replace(config, storage="sharded"), comm, teams, run)
    return replace(team, shard_set=shard_set)


def _planned(config: RolloutConfig, nodes: list[str]) -> tuple["ClaimedSet | None", tuple[Team, ...] | None, str]:
    """Return the set of shards, and its teams; None for both where `auto` is one file."""
    from mpi_rollout.storage.manifest import is_set
    from mpi_rollout.storage.shard_set import claim_set

    if not (simulated := os.environ.get(NODES_VARIABLE, "1")).isdigit():
        raise UsageError(f"{NODES_VARIABLE} is {simulated!r}, and not a number of nodes")
    if config.storage == "auto":
        there = [path for path in (config.path + ".part", config.path) if os.path.lexists(path)]
        is_sharded = is_set(there[0]) if there else len({*nodes}) > 1
        if not is_sharded or not config.trajectories:
            return None, None, ""
    claimed = claim_set(config)
    shards = claimed.ranges or shards_of(config.num_envs, nodes, config.shards_per_node)
    claimed.ranges = shards
    teams, why = fitting_teams(config, shards, nodes)
    if len(teams) < len(shards):
        who = "rank 0 writes" if len(teams) == 1 else f"{len(teams)} ranks write"
        say(f"mpi_rollout: {who} all {len(shards)} shards, because {why}\n")
    return claimed, teams, claimed.run


def fitting_teams(config: RolloutConfig, shards: Sequence[range], nodes: list[str]) -> tuple[tuple[Team, ...], str]:
    """Divide ranks into teams, or make one of all of them where a smaller one could not do the run with its envs.

    Return also why there are fewer teams than shards, if there are.
    """
    needs = {  # What has to see all envs at each step, so that rank 0 drives all ranks.
        f"the callable {config.policy} is called for all envs": not (config.is_random or config.has_model),
        "--num-episodes counts the episodes of all envs": config.num_episodes is not None,
        "--on-rank-loss shrink is for one team of ranks": config.on_rank_loss == "shrink",
    }
    if whys := [why for why, is_so in needs.items() if is_so]:
        return teams_of(shards, nodes, is_one=True), whys[0]
    teams = teams_of(shards, nodes)
    try:
        for team in teams:
            divided(config, len(team.envs), len(team.ranks))
    except UsageError:
        return teams_of(shards, nodes, is_one=True), "a team for each would have too few envs, or no rank for them"
    return teams, f"the job has {counted(len(nodes), 'rank')} on {counted(len({*nodes}), 'node')}"


def _joined(config: RolloutConfig, comm: "MPI.Intracomm", teams: tuple[Team, ...], run: str) -> RankTeam:
    """Split the ranks into their teams.  **Collective**."""
    number = next(number for number, team in enumerate(teams) if comm.rank in team.ranks)
    team = teams[number]
    own_comm = comm if len(teams) == 1 else cast("MPI.Intracomm", comm.Split(number, comm.rank))
    leads = own_comm.rank == ROOT
    # In the order of envs, which need not be that of ranks.
    leaders_comm = comm if comm.size == 1 else cast("MPI.Intracomm", comm.Split(int(leads), number))
    if not leads:
        leaders_comm.Free()
    hosts = own_comm.gather(os.uname().nodename, ROOT)
    own = part_of_run(config, team.envs)
    if comm.rank != ROOT:
        own = replace(own, progress="none", log_dir=None, trace=None)
    return RankTeam(
        own_comm,
        own,
        config,
        team,
        teams,
        run,
        leaders=Leaders(leaders_comm) if leads else None,
        hosts=tuple(hosts or ()),
    )
