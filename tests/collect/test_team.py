"""Which ranks of a job collect which shards together."""

from mpi_rollout.collect.team import fitting_teams
from mpi_rollout.config import RolloutConfig


def test_a_team_whose_root_has_too_many_envs_for_its_groups_is_one_of_all_ranks():
    config = RolloutConfig(env="CartPole-v1", num_envs=17, num_groups=2, root_envs=3, storage="sharded", out="run.h5")
    teams, why = fitting_teams(config, [range(8), range(8, 17)], ["node"] * 8)
    assert [len(team.ranks) for team in teams] == [8] and why.startswith("a team for each would have too few envs")
