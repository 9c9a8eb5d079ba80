"""Who owns which envs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpi_rollout.core.layout import split_by_rank
from mpi_rollout.core.partition import Division, EnvRanks, Partition, Team, shards_of, teams_of
from mpi_rollout.errors import UsageError, as_flag

WORLDS = [(1, 1), (5, 1), (5, 5), (7, 3), (64, 4), (1001, 1000)]
worlds = pytest.mark.parametrize(
    ("partition", "num_workers"),
    [
        (Partition(num_envs, num_workers + (root_envs == 0), root_envs, first_env), num_workers)
        for num_envs, num_workers in WORLDS
        for root_envs in (None, 0)
        for first_env in (0, 7)
    ],
    ids=str,
)


@worlds
def test_ranks_own_the_slices_that_array_split_makes(partition: Partition, num_workers: int):
    slices = [list(partition.envs_of(rank)) for rank in range(partition.num_ranks)]
    even = [part.tolist() for part in np.array_split(np.array(partition.envs), num_workers)]
    assert slices == [[]] * (partition.root_envs == 0) + even
    assert partition.capacity == max(map(len, slices)) and partition.envs_of(partition.num_ranks) == range(0)
    slots, rows = partition.places
    placed = [slices[slot][row] for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)]
    assert placed == list(partition.envs) == list(range(partition.first_env, partition.first_env + partition.num_envs))


@worlds
def test_columns_are_split_by_ranges_of_ranks_without_a_copy(partition: Partition, num_workers: int):
    assert len(partition.ranges) <= 2
    column = np.broadcast_to(np.arange(partition.envs.stop)[None, :, None], (2, partition.envs.stop, 3)).copy()
    views = split_by_rank(column, partition)
    owned = {
        ranks.first_rank + place: envs[:, 0].tolist()
        for ranks, view in zip(partition.ranges, views, strict=True)
        for place, envs in enumerate(view[1])
    }
    own = {rank: list(partition.envs_of(rank)) for rank in range(partition.num_ranks)}
    assert owned == {rank: envs for rank, envs in own.items() if envs}
    assert all(np.shares_memory(view, column) for view in views)


@pytest.mark.parametrize(("num_envs", "num_ranks", "root_envs"), [(7, 2, 1), (7, 2, 6), (64, 4, 5), (11, 3, 9)])
@pytest.mark.parametrize("first_env", [0, 5])
def test_the_root_may_own_few_envs_or_many(num_envs: int, num_ranks: int, root_envs: int, first_env: int):
    partition = Partition(num_envs, num_ranks, first_env=first_env, root_envs=root_envs)
    slices = [partition.envs_of(rank) for rank in range(num_ranks)]
    assert len(slices[0]) == root_envs and slices[0].start == first_env
    sizes = [len(envs) for envs in slices[1:]]
    assert max(sizes) - min(sizes) <= 1 and [index for envs in slices for index in envs] == list(partition.envs)
    assert partition.capacity == max(root_envs, *sizes)
    column = np.broadcast_to(np.arange(partition.envs.stop)[None], (2, partition.envs.stop)).copy()
    parts = [part.tolist() for view in split_by_rank(column, partition) for part in view[1]]
    assert parts == [list(envs) for envs in slices]


def test_groups_share_the_envs_of_the_root():
    division = Division(20, 3, num_groups=2, root_envs=5)
    assert [len(envs) for envs in division.envs_of(0)] == [3, 2]
    assert [len(division.envs_of(rank)[0]) + len(division.envs_of(rank)[1]) for rank in (1, 2)] == [8, 7]
    assert [len(envs[0]) for envs in map(Division(20, 3, first_ready=True, root_envs=4).envs_of, range(3))] == [4, 8, 8]


@pytest.mark.parametrize(
    ("num_envs", "num_ranks", "num_groups", "root_envs", "problem"),
    [
        (8, 1, 1, 4, "root_envs=4 needs at least 2 ranks, got 1"),
        (8, 3, 1, 7, "root_envs must be from 0 to 6, so that each other rank has an env, got 7 of 8 envs on 3 ranks"),
        (8, 3, 1, -1, "root_envs must be from 0 to 6"),
        (8, 2, 3, 2, "root_envs must be at least the number of groups, 3, got 2"),
        (8, 4, 2, 3, "root_envs must be at most 2, so .* env in each of 2 groups, got 3 of 8 envs on 4 ranks"),
        (4, 1, 1, 0, "root_envs=0 needs .* got 1; start the program with mpirun -n 2"),
        (2, 3, 1, None, r"num_envs must be at least .* got 2 envs on 3 ranks; use more envs or"),
        (2, 4, 1, 0, r"num_envs must be at least .* got 2 envs on 3 ranks; use more envs or"),
        (5, 2, 3, None, r"num_groups 3 needs at least 3 envs for each .* got 5 envs on 2 ranks; use"),
        (5, 3, 3, 0, r"num_groups 3 needs at least 3 envs for each .* got 5 envs on 2 ranks; use"),
    ],
)
def test_impossible_numbers_of_envs_ranks_and_groups_are_refused(
    num_envs: int, num_ranks: int, num_groups: int, root_envs: int | None, problem: str
):
    with pytest.raises(UsageError, match=problem):
        Division(num_envs, num_ranks, root_envs, num_groups)


@pytest.mark.parametrize(
    "division",
    [
        Division(num_envs, num_ranks, root_envs, num_groups)
        for num_envs, num_ranks in [(12, 1), (13, 3), (1000, 7)]
        for root_envs in (None, 0)
        for num_groups in (1, 2, 3)
        if num_ranks > (root_envs == 0) and num_envs >= num_groups * (num_ranks - (root_envs == 0))
    ],
    ids=str,
)
def test_groups_are_neighbouring_envs_over_all_ranks_or_those_of_one_rank(division: Division):
    num_envs, num_ranks, root_envs = division.num_envs, division.num_ranks, division.root_envs
    even = [part.tolist() for part in np.array_split(np.arange(num_envs), division.num_groups)]
    assert [list(partition.envs) for _, partition in division.partitions] == even
    shared = [(first, partition.num_ranks, partition.root_envs) for first, partition in division.partitions]
    assert shared == [(0, num_ranks, root_envs)] * division.num_groups
    whole, by_rank = Partition(num_envs, num_ranks, root_envs), Division(num_envs, num_ranks, root_envs, 1, True)
    assert [(rank, partition.num_ranks, partition.envs) for rank, partition in by_rank.partitions] == [
        (rank, 1, whole.envs_of(rank)) for rank in by_rank.stepping_ranks
    ]
    for divided in (division, by_rank):
        slices = [envs for rank in range(num_ranks) for envs in divided.envs_of(rank)]
        assert sorted(index for envs in slices for index in envs) == list(range(num_envs))
        assert all(slices) and (root_envs is None or divided.envs_of(0) == ())
        assert divided.stepping_ranks == tuple(range(int(root_envs == 0), num_ranks))
        num_slices = {len(divided.envs_of(rank)) for rank in divided.stepping_ranks}
        assert num_slices == {1 if divided is by_rank else division.num_groups}


def nodes(*sizes: int) -> tuple[str, ...]:
    return tuple(f"n{place}" for place, size in enumerate(sizes) for _ in range(size))


@pytest.mark.parametrize(
    ("on", "ranks_per_env", "root_envs", "groups", "scattered"),
    [
        (nodes(4), 2, None, ((0, 1), (2, 3)), ()),
        (nodes(5, 4), 4, 0, ((1, 2, 3, 4), (5, 6, 7, 8)), ()),
        (nodes(3, 3), 2, None, ((0, 1), (2, 5), (3, 4)), ((2, 5),)),
        (nodes(2, 2), 4, 3, ((0, 1, 2, 3),), ((0, 1, 2, 3),)),
        (("a", "b") * 3, 3, None, ((0, 2, 4), (1, 3, 5)), ()),
    ],
)
def test_the_ranks_of_an_env_are_neighbours_on_one_node_where_that_is_possible(
    on: tuple[str, ...], ranks_per_env: int, root_envs: int | None, groups: Any, scattered: Any
):
    ranks = EnvRanks(on, ranks_per_env, root_envs)
    assert ranks.groups == groups and ranks.scattered == scattered
    apart = (0,) if root_envs == 0 else ()
    assert ranks.first_ranks == apart + tuple(group[0] for group in groups) and ranks.first_ranks[0] == 0
    assert all(ranks.group_of(rank) == group for group in groups for rank in group)
    assert not apart or ranks.group_of(0) == ()


@pytest.mark.parametrize(
    ("size", "ranks_per_env", "root_envs", "words"),
    [
        (5, 2, None, "got 5 ranks; start the program with mpirun -n 4"),
        (4, 2, 0, "got 3 ranks besides the root, which steps no envs; start the program with mpirun -n 3"),
        (1, 4, None, "got 1 rank; start the program with mpirun -n 4"),
        (1, 2, 0, "got 0 ranks besides the root, which steps no envs; start the program with mpirun -n 3"),
    ],
)
def test_ranks_that_would_be_left_are_refused(size: int, ranks_per_env: int, root_envs: int | None, words: str):
    with pytest.raises(UsageError) as caught:
        EnvRanks(nodes(size), ranks_per_env, root_envs)
    assert words in caught.value.shown(as_flag)


# Which ranks collect which shards.


@pytest.mark.parametrize(
    ("num_envs", "nodes", "shards_per_node", "sizes"),
    [
        (10, "aabb", 1, [5, 5]),
        (10, "abab", 1, [5, 5]),
        (9, "aaabbbccc", 1, [3, 3, 3]),
        (9, "aab", 1, [6, 3]),  # As many as the share of the ranks.
        (7, "aaabb", 1, [4, 3]),
        (8, "aabb", 2, [2, 2, 2, 2]),
        (2, "aa", 3, [1, 1]),  # No shard is empty.
        (5, "a", 2, [2, 3]),
    ],
)
def test_each_node_has_shards_for_its_share_of_the_ranks(num_envs, nodes, shards_per_node, sizes):
    shards = shards_of(num_envs, nodes, shards_per_node)
    assert [len(envs) for envs in shards] == sizes
    assert [env for envs in shards for env in envs] == list(range(num_envs))


@pytest.mark.parametrize("num_ranks", range(1, 12))
@pytest.mark.parametrize("num_nodes", range(1, 5))
def test_each_rank_of_a_new_run_has_an_env(num_ranks, num_nodes):
    nodes = [str(rank * num_nodes // num_ranks) for rank in range(num_ranks)]
    for num_envs in range(num_ranks, num_ranks + 9):
        teams = teams_of(shards_of(num_envs, nodes, 1), nodes)
        assert all(len(team.envs) >= len(team.ranks) for team in teams)
        assert sorted(rank for team in teams for rank in team.ranks) == list(range(num_ranks))
        assert [env for team in teams for env in team.envs] == list(range(num_envs))
        assert teams[0].ranks[0] == 0


@pytest.mark.parametrize(
    ("nodes", "num_shards", "expected"),
    [
        ("aabb", 2, [((0, 1), 1), ((2, 3), 1)]),
        ("abab", 2, [((0, 2), 1), ((1, 3), 1)]),
        ("aabb", 4, [((0,), 1), ((1,), 1), ((2,), 1), ((3,), 1)]),
        ("ab", 4, [((0,), 2), ((1,), 2)]),
        ("aab", 3, [((0,), 1), ((1,), 1), ((2,), 1)]),  # Continued on another number of nodes.
        ("aaa", 2, [((0, 1), 1), ((2,), 1)]),
        ("a", 3, [((0,), 3)]),
    ],
)
def test_a_team_has_a_shard_where_there_are_enough_ranks(nodes, num_shards, expected):
    shards = [range(2 * number, 2 * number + 2) for number in range(num_shards)]
    teams = teams_of(shards, nodes)
    assert [(team.ranks, len(team.shards)) for team in teams] == expected
    assert [envs for team in teams for envs in team.shards] == shards


def test_all_ranks_are_one_team_where_somebody_needs_all_envs():
    assert teams_of([range(2), range(2, 4)], "aabb", is_one=True) == (Team((0, 1, 2, 3), (range(2), range(2, 4))),)


def test_the_ranks_of_a_team_rise_where_neighbouring_ranks_are_on_different_nodes():
    shards = [range(2), range(2, 4), range(4, 6)]
    assert teams_of(shards, "ababab", is_one=True) == (Team((0, 1, 2, 3, 4, 5), tuple(shards)),)
    assert [team.ranks for team in teams_of(shards, "aabbab")] == [(0, 1), (2, 4), (3, 5)]
    assert [team.ranks for team in teams_of(shards, "ababab")] == [(0, 2), (1, 4), (3, 5)]


# Whatever the numbers.


@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.none() | st.integers(-1, 12),
    st.integers(1, 4),
    st.booleans(),
)
def test_each_env_is_on_exactly_one_rank_in_order_or_the_numbers_are_refused(
    num_envs: int, num_ranks: int, root_envs: int | None, num_groups: int, first_ready: bool
):
    num_groups = 1 if first_ready else num_groups
    can_be = num_envs >= num_groups * (num_ranks - (root_envs == 0))
    if root_envs is not None:
        can_be &= num_ranks > 1 and root_envs >= 0
    if root_envs:
        can_be &= num_groups <= root_envs <= num_envs - num_groups * (num_ranks - 1)
    if not can_be:
        with pytest.raises(UsageError):
            Division(num_envs, num_ranks, root_envs, num_groups, first_ready)
        return
    division = Division(num_envs, num_ranks, root_envs, num_groups, first_ready)
    owners = [rank for rank in range(num_ranks) for envs in division.envs_of(rank) for _ in envs]
    envs = [env for rank in range(num_ranks) for own in division.envs_of(rank) for env in own]
    assert sorted(envs) == list(range(num_envs)) and owners == sorted(owners)
    assert root_envs is None or owners.count(0) == root_envs
    sizes = [owners.count(rank) for rank in division.stepping_ranks if rank or not root_envs]
    assert min(sizes, default=1) >= 1 and max(sizes, default=0) - min(sizes, default=0) <= division.num_groups
    at = 0
    for first_rank, partition in division.partitions:
        own = [partition.envs_of(rank) for rank in range(partition.num_ranks)]
        assert [env for part in own for env in part] == list(partition.envs)
        assert partition.envs.start == at and partition.capacity == max(map(len, own))
        assert first_rank + partition.num_ranks <= num_ranks
        ranks, places = partition.places
        assert [own[rank][place] for rank, place in zip(ranks, places, strict=True)] == list(partition.envs)
        at = partition.envs.stop
    assert at == num_envs


NODES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(NODES, st.integers(1, 3), st.integers(0, 30), st.booleans())
def test_each_env_is_in_one_shard_and_each_rank_in_one_team(
    nodes: list[str], shards_per_node: int, num_more: int, is_one: bool
):
    shards = shards_of(len(nodes) + num_more, nodes, shards_per_node)
    assert all(shards) and [env for envs in shards for env in envs] == list(range(len(nodes) + num_more))
    for on in (nodes, nodes[::-1], ["a"] * len(nodes)):  # A run may be continued on other nodes.
        teams = teams_of(shards, on, is_one)
        assert sorted(rank for team in teams for rank in team.ranks) == list(range(len(nodes)))
        assert [envs for team in teams for envs in team.shards] == list(shards)
        assert all(list(team.ranks) == sorted(team.ranks) for team in teams) and teams[0].ranks[0] == 0
    # With several shards on a node a run makes one team of all ranks where this does not hold.
    shards = shards_of(len(nodes) + num_more, nodes, 1)
    assert all(len(team.envs) >= len(team.ranks) for team in teams_of(shards, nodes, is_one))


@given(NODES, st.integers(1, 4), st.sampled_from([None, 0]))
def test_each_rank_is_in_one_group_of_ranks_or_none_fits(nodes: list[str], size: int, root_envs: int | None):
    num_apart = int(root_envs == 0)
    try:
        ranks = EnvRanks(tuple(nodes), size, root_envs)
    except UsageError:
        assert len(nodes) == num_apart or (len(nodes) - num_apart) % size
        return
    assert sorted(rank for group in ranks.groups for rank in group) == list(range(num_apart, len(nodes)))
    assert all(len(group) == size and list(group) == sorted(group) for group in ranks.groups)
    assert list(ranks.first_ranks) == sorted(ranks.first_ranks) and ranks.first_ranks[0] == 0
    for group in ranks.groups:
        assert all(ranks.group_of(rank) == group for rank in group)
