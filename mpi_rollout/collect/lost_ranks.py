"""Ranks that a run goes on without."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpi_rollout.collect.watcher import LostRank, Watcher
from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import RankLost
from mpi_rollout.process.clock import PHASES
from mpi_rollout.text import counted

RankReport = dict[str, Any]  # What a rank says of itself at the end: its host, envs and seconds by phase.


class LostRanks(Watcher):
    """The root's list of ranks that are gone, `all` in the order in which they were lost; `show` tells the user.

    `hosts` has those of the driver's ranks, by their numbers in the job.
    """

    def __init__(self, driver: Driver, hosts: Mapping[int, str], show: Callable[[str], None]):
        self.all: list[LostRank] = []
        self._driver, self._hosts, self._show = driver, hosts, show

    def on_losses(self, ranks: Sequence[LostRank]) -> None:
        """Go on without ranks that are gone; RankLost if none is left that steps envs."""
        self.all += ranks
        exchanges = self._driver.exchanges
        if exchanges.num_stepping == 0:
            raise RankLost(f"lost {ranks[-1]}; no rank is left that steps envs")
        num_envs = exchanges.division.num_envs
        num_left = num_envs - sum(loss.num_envs for loss in self.all)
        for loss in ranks:
            self._show(f"mpi_rollout: lost {loss}; going on with {num_left} of {counted(num_envs, 'env')}\n")

    def reports(self) -> list[RankReport]:
        """Ask the ranks for their reports at the end, in rank order; of those that are gone, return what is known."""
        reports = None
        while reports is None:
            try:
                told = self._driver.call_ranks(self._driver.worker.control.report)
                reports = {report["rank"]: report for report in told}
            except RankLost as error:  # It has given all its steps.
                self._show(f"mpi_rollout: {error}\n")
        known = {"seconds": dict.fromkeys(PHASES, 0.0), "fault": None}
        envs_of = self._driver.exchanges.division.whole.envs_of
        return [
            reports.get(rank) or {"rank": rank, "host": host, "num_envs": len(envs_of(place)), **known}
            for place, (rank, host) in enumerate(self._hosts.items())
        ]
