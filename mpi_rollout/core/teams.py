"""Which ranks collect and store which envs, where a run writes several files: values only, no communication.

A *shard* is one of these files: a range of envs.  A *team* is some ranks that collect one shard or several neighbouring
ones; its first rank is its root, and writes them.  Teams do not depend on each other's data.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from mpi_rollout.core.partition import Partition, ranks_by_node

T = TypeVar("T")


class Team(NamedTuple):
    """The numbers of its ranks in the job, rising, and its shards, as ranges of envs."""

    ranks: tuple[int, ...]
    shards: tuple[range, ...]

    @property
    def envs(self) -> range:
        return range(self.shards[0].start, self.shards[-1].stop)


def shards_of(num_envs: int, nodes: Sequence[str], shards_per_node: int) -> tuple[range, ...]:
    """Divide envs into shards of a new run; `nodes` has the node of each rank.

    Each node has as many envs as its share of the ranks says, and each shard has one env at least.
    """
    weights = [len(ranks) / shards_per_node for ranks in ranks_by_node(nodes) for _ in range(shards_per_node)]
    stops, total = [0], 0.0
    for weight in weights:
        total += weight
        stops.append(int(num_envs * total / len(nodes) + 1e-9))
    ranges = (range(start, stop) for start, stop in pairwise(stops))
    return tuple(envs for envs in ranges if envs)


def teams_of(shards: Sequence[range], nodes: Sequence[str], is_one: bool = False) -> tuple[Team, ...]:
    """Divide ranks into teams, one for each shard where there are enough ranks.

    A team is on one node if there are equally many shards for each node.  With `is_one` all ranks are one team: the
    run needs all envs at one place.
    """
    by_node = ranks_by_node(nodes)
    if len(shards) % len(by_node) or is_one:
        by_node = [[rank for ranks in by_node for rank in ranks]]
    teams = []
    for ranks, own in zip(by_node, _parts(shards, len(by_node)), strict=True):
        num_teams = 1 if is_one else min(len(ranks), len(own))
        parts = zip(_parts(ranks, num_teams), _parts(own, num_teams), strict=True)
        teams += [Team(tuple(sorted(some_ranks)), tuple(some_shards)) for some_ranks, some_shards in parts]
    return tuple(teams)


def _parts(items: Sequence[T], num_parts: int) -> list[Sequence[T]]:
    places = Partition(len(items), num_parts)
    return [items[part.start : part.stop] for part in map(places.envs_of, range(num_parts))]
