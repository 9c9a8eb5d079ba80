"""Ranks that a run goes on without: what the file, the user and the summary are told of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi_rollout.collect.monitor import RunState
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.clock import PHASES
from mpi_rollout.errors import RankLost, counted
from mpi_rollout.ranks.driver import Driver

RankReport = dict[str, Any]  # What a rank says of itself at the end: its host, envs and seconds by phase.


@dataclass(frozen=True)
class LostRank:
    """A rank that was lost with its envs; `step` is the first one that these did not take, counted from 0."""

    rank: int
    host: str
    first_env: int
    num_envs: int
    step: int

    def __str__(self) -> str:
        last = self.first_env + self.num_envs - 1
        envs = f"env {last}" if self.num_envs == 1 else f"envs {self.first_env} to {last}"
        return f"rank {self.rank} ({self.host}), {envs}, at step {self.step:,}"


class LostRanks:
    """The root's list of ranks that are gone.

    Parameters
    ----------
    hosts
        Of all ranks, in rank order.
    show
        Writes to stderr.

    Attributes
    ----------
    all
        In the order in which they were lost.
    """

    def __init__(self, config: RolloutConfig, driver: Driver, hosts: list[str], show: Callable[[str], None]):
        self.all: list[LostRank] = []
        self._config, self._driver, self._hosts, self._show = config, driver, hosts, show

    def note(self, ranks: list[int], state: RunState) -> None:
        """Go on without ranks that are gone, from the step under way on.

        Raises
        ------
        RankLost
            No rank is left that steps envs.
        """
        collector, num_envs = state.collector, self._config.num_envs
        assert collector is not None
        new = []
        for rank in ranks:
            envs = collector.lose(rank)
            new.append(LostRank(rank, self._hosts[rank], envs.start, len(envs), collector.num_steps))
        self.all += new
        if self._driver.exchanges.num_stepping == 0:
            raise RankLost(f"lost {new[-1]}; no rank is left that steps envs")
        num_left = num_envs - sum(loss.num_envs for loss in self.all)
        for loss in new:
            self._show(f"mpi_rollout: lost {loss}; going on with {num_left} of {counted(num_envs, 'env')}\n")
            for index in range(loss.first_env, loss.first_env + loss.num_envs):
                state.file.add_fault(index, loss.step, f"lost rank {loss.rank} ({loss.host})")

    def reports(self) -> list[RankReport]:
        """Ask the ranks for their reports at the end, in rank order; of those that are gone, return what is known."""
        reports = None
        while reports is None:
            try:
                reports = {report["rank"]: report for report in self._driver.call_ranks("report")}
            except RankLost as error:  # It has given all its steps.
                self._show(f"mpi_rollout: {error}\n")
        known = {"seconds": dict.fromkeys(PHASES, 0.0), "fault": None}
        envs_of = self._driver.exchanges.division.whole.envs_of
        return [
            reports.get(rank) or {"rank": rank, "host": host, "num_envs": len(envs_of(rank)), **known}
            for rank, host in enumerate(self._hosts)
        ]
