"""Which rank owns, exchanges and stores which envs: values only, no communication.

A *shard* is one of several files of a run: a range of envs.  A *team* is some ranks that collect one shard or several
neighbouring ones; its first rank is its root, and writes them.  Teams do not depend on each other's data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.process.allocation import starting
from mpi_rollout.text import counted

T = TypeVar("T")


def shifted(envs: range, first_env: int) -> range:
    """Return the indices of neighbouring envs in a larger run, of which env `first_env` is env 0 here."""
    return range(envs.start + first_env, envs.stop + first_env)


class RankRange(NamedTuple):
    """Neighbouring ranks with equally many envs each: one strided copy can move these."""

    first_rank: int
    num_ranks: int
    first_env: int
    envs_per_rank: int

    @property
    def ranks(self) -> slice:
        return slice(self.first_rank, self.first_rank + self.num_ranks)

    @property
    def envs(self) -> slice:
        return slice(self.first_env, self.first_env + self.num_ranks * self.envs_per_rank)


@dataclass(frozen=True)
class Partition:
    """`num_envs` envs over `num_ranks` ranks in rank order; slices differ by one env at most.

    `root_envs` are those of rank 0, which may have none.  `first_env` is the index of the first env, where these envs
    are some of all envs.

    UsageError if a rank that should step envs would get none.
    """

    num_envs: int
    num_ranks: int
    root_envs: int | None = None
    first_env: int = 0

    def __post_init__(self) -> None:
        if self.root_envs is not None and self.num_ranks < 2:
            needs = " needs at least 2 ranks, got 1; start the program with "
            raise UsageError(Option("root_envs", self.root_envs), f"{needs}{starting(2)} or more")
        if self.num_envs < self.num_workers:
            got = f"{counted(self.num_envs, 'env')} on {counted(self.num_workers, 'rank')}"
            needs = f" must be at least the number of ranks that step envs, got {got}; use more envs or fewer ranks"
            raise UsageError(Option("num_envs"), needs)
        most = self.num_envs - self.num_ranks + 1
        if self.root_envs is not None and not 0 <= self.root_envs <= most:
            got = f"got {self.root_envs} of {counted(self.num_envs, 'env')} on {counted(self.num_ranks, 'rank')}"
            needs = f" must be from 0 to {most}, so that each other rank has an env, {got}"
            raise UsageError(Option("root_envs"), needs)

    @property
    def envs(self) -> range:
        return range(self.first_env, self.first_env + self.num_envs)

    @property
    def num_workers(self) -> int:
        """Return the number of ranks that step envs."""
        return self.num_ranks - (self.root_envs == 0)

    @property
    def capacity(self) -> int:
        """Return the number of envs of the fullest rank."""
        return max(ranks.envs_per_rank for ranks in self.ranges)

    @cached_property
    def ranges(self) -> tuple[RankRange, ...]:
        """Return the ranks with envs, grouped by their number of envs: two groups at most, and rank 0 by itself."""
        if not self.root_envs:
            return _even_ranges(self.num_ranks - self.num_workers, self.num_workers, self.envs)
        root = RankRange(0, 1, self.first_env, self.root_envs)
        return root, *_even_ranges(1, self.num_ranks - 1, range(root.envs.stop, self.envs.stop))

    def envs_of(self, rank: int) -> range:
        for ranks in self.ranges:
            if ranks.first_rank <= rank < ranks.first_rank + ranks.num_ranks:
                start = ranks.first_env + (rank - ranks.first_rank) * ranks.envs_per_rank
                return range(start, start + ranks.envs_per_rank)
        return range(0)

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for each env, in order, its rank and its row there."""
        sizes = [len(self.envs_of(rank)) for rank in range(self.num_ranks)]
        return np.repeat(np.arange(self.num_ranks), sizes), np.concatenate([np.arange(size) for size in sizes])


def _even_ranges(first_rank: int, num_ranks: int, envs: range) -> tuple[RankRange, ...]:
    small, num_large = divmod(len(envs), num_ranks)
    large = RankRange(first_rank, num_large, envs.start, small + 1)
    rest = RankRange(first_rank + num_large, num_ranks - num_large, large.envs.stop, small)
    return tuple(ranks for ranks in (large, rest) if ranks.num_ranks)


@dataclass(frozen=True)
class Division:
    """How all envs of a job are divided into groups that are exchanged together.

    One group over all ranks is lockstep.  With `num_groups` groups of neighbouring envs, each over all ranks, the ranks
    step one group while the root is busy with another.  With `first_ready` each rank that steps envs is a group.
    `root_envs` are those of rank 0 in all groups.

    UsageError if a rank that should step envs would get none.
    """

    num_envs: int
    num_ranks: int
    root_envs: int | None = None
    num_groups: int = 1
    first_ready: bool = False

    def __post_init__(self) -> None:
        num_workers = self.whole.num_workers
        if self.num_envs < self.num_groups * num_workers:
            needs = f"needs at least {counted(self.num_groups, 'env')} for each rank that steps envs"
            got = f"got {counted(self.num_envs, 'env')} on {counted(num_workers, 'rank')}"
            message = f" {self.num_groups} {needs}, {got}; use more envs or fewer groups"
            raise UsageError(Option("num_groups"), message)
        if self.root_envs and self.root_envs < self.num_groups:
            raise UsageError(
                Option("root_envs"), f" must be at least the number of groups, {self.num_groups}, got {self.root_envs}"
            )
        most = self.num_envs - self.num_groups * (self.num_ranks - 1)
        if self.root_envs and self.root_envs > most:
            needs = f" must be at most {most}, so that each other rank has an env in each of {self.num_groups} groups"
            got = f"{self.root_envs} of {counted(self.num_envs, 'env')} on {counted(self.num_ranks, 'rank')}"
            raise UsageError(Option("root_envs"), f"{needs}, got {got}")

    @property
    def whole(self) -> Partition:
        """Return the partition of all envs over all ranks."""
        return Partition(self.num_envs, self.num_ranks, self.root_envs)

    @cached_property
    def partitions(self) -> tuple[tuple[int, Partition], ...]:
        """Return the groups in env order: the first rank, and the partition of some envs over it and the next ranks."""
        if self.first_ready:
            return tuple(
                (rank, Partition(len(envs), 1, first_env=envs.start))
                for rank, envs in enumerate(map(self.whole.envs_of, range(self.num_ranks)))
                if envs
            )
        groups = map(Partition(self.num_envs, self.num_groups).envs_of, range(self.num_groups))
        of_root = Partition(self.root_envs, self.num_groups).envs_of if self.root_envs else None
        return tuple(
            (0, Partition(len(envs), self.num_ranks, len(of_root(group)) if of_root else self.root_envs, envs.start))
            for group, envs in enumerate(groups)
        )

    @cached_property
    def stepping_ranks(self) -> tuple[int, ...]:
        return tuple(range(self.num_ranks - self.whole.num_workers, self.num_ranks))

    def envs_of(self, rank: int) -> tuple[range, ...]:
        """Return the env indices of one rank in each group that it belongs to."""
        slices = [partition.envs_of(rank - first_rank) for first_rank, partition in self.partitions]
        return tuple(envs for envs in slices if envs)


def ranks_by_node(nodes: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each node, in the order of its first rank; `nodes` has the node of each rank."""
    by_node: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        by_node.setdefault(node, []).append(rank)
    return list(by_node.values())


@dataclass(frozen=True)
class EnvRanks:
    """Which ranks make each env together: `ranks_per_env` neighbours, on one node where that is possible.

    `nodes` has the node of each rank.  A root that steps no envs, with `root_envs` 0, is by itself.  The first rank of
    each group, and such a root, are the first ranks: the job is divided among them as if it had no other ranks.

    UsageError if some ranks would be left.
    """

    nodes: tuple[str, ...]
    ranks_per_env: int
    root_envs: int | None = None

    def __post_init__(self) -> None:
        num_ranks = len(self.nodes) - self._num_apart
        if num_ranks % self.ranks_per_env or not num_ranks:
            got = f"{counted(num_ranks, 'rank')}" + " besides the root, which steps no envs" * self._num_apart
            needs = f" must divide the number of ranks that step envs, got {got}; start the program with "
            fitting = self._num_apart + max(1, num_ranks // self.ranks_per_env) * self.ranks_per_env
            raise UsageError(Option("ranks_per_env", self.ranks_per_env), needs + starting(fitting))

    @property
    def _num_apart(self) -> int:
        return int(self.root_envs == 0)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each group, rising, in the order of the first ranks."""
        size, first = self.ranks_per_env, self._num_apart
        by_node = [[rank + first for rank in ranks] for ranks in ranks_by_node(self.nodes[first:])]
        whole = [ranks[: len(ranks) - len(ranks) % size] for ranks in by_node]
        left = sorted(rank for ranks, taken in zip(by_node, whole, strict=True) for rank in ranks[len(taken) :])
        rows = [ranks[start : start + size] for ranks in [*whole, left] for start in range(0, len(ranks), size)]
        return tuple(sorted(map(tuple, rows)))

    @property
    def first_ranks(self) -> tuple[int, ...]:
        """Return the ranks that take part in the exchange, rising: the root is the first."""
        return *range(self._num_apart), *(ranks[0] for ranks in self.groups)

    @property
    def scattered(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups whose ranks are on several nodes."""
        return tuple(ranks for ranks in self.groups if len({self.nodes[rank] for rank in ranks}) > 1)

    def group_of(self, rank: int) -> tuple[int, ...]:
        """Return the group of a rank; empty for a root by itself."""
        return next((ranks for ranks in self.groups if rank in ranks), ())


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
