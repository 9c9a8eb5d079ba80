"""The services that the ranks of a run have besides those of every worker; see `ranks.service`."""

from mpi_rollout.collect.trace import TraceLaps, TracingClock
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.seeding import RankGenerators
from mpi_rollout.envs.bare import Limit
from mpi_rollout.envs.infos import OtherInfos
from mpi_rollout.ranks.service import Service
from mpi_rollout.ranks.set_up import RankParts


class UnstoredInfos:
    """The names of infos that came on this rank and are not stored, as a `Service`."""

    name = "infos"

    def __init__(self, others: OtherInfos | None):
        self._others = others

    def names(self) -> list[str]:
        return [] if self._others is None else self._others.names()


def services_of_run(config: RolloutConfig, parts: RankParts, rank: int, clock: TracingClock | None) -> list[Service]:
    """Return the services of one rank of a run; `rank` is its number in the job, `clock` that of a run with a trace."""
    wait_for_all, make = parts.exchanges.control.wait_for_all, parts.plan.make
    return [
        Limit(make, config.seed, wait_for_all, parts.env_indices, parts.facts.action_space),
        RankGenerators(config.seed, rank, config.first_env),
        UnstoredInfos(parts.others),
        *([] if clock is None else [TraceLaps(clock)]),
    ]
