"""Which ranks collect which shards."""

import pytest

from mpi_rollout.core.partition import Team, shards_of, teams_of


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
