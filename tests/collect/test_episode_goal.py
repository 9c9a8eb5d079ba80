"""Which ends of a block are episodes, and in which row there are enough: as the table of episodes has them."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpi_rollout.collect.episode_goal import EpisodeGoal
from mpi_rollout.envs.replaying import Past
from mpi_rollout.storage.episodes import EpisodeTable

pytestmark = pytest.mark.any_mpi
NUM_ENVS, NUM_ROWS = 5, 60


def some_block(draws: np.random.Generator) -> tuple[SimpleNamespace, list[tuple[int, int]]]:
    """Rows in which ends follow each other as no run has them, and faults: an env is lost, resets fail."""
    ends = draws.random((NUM_ROWS, NUM_ENVS)) < 0.3
    ends[NUM_ROWS // 2 :, 1] = True
    faults = [(step, env) for step, env in np.argwhere(ends).tolist() if draws.random() < 0.3]
    rewards = np.zeros((NUM_ROWS, NUM_ENVS))
    results = {"rewards": rewards, "terminations": np.zeros_like(ends), "truncations": ends}
    return SimpleNamespace(start=0, **results, agent_rewards=()), faults


@pytest.mark.parametrize("num_reset_rows", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_episodes_are_counted_as_the_table_has_them_however_rows_come(seed: int, num_reset_rows: int):
    draws = np.random.default_rng(seed)
    block, faults = some_block(draws)
    table = EpisodeTable(NUM_ENVS, None, num_reset_rows)
    table._faults = [(env, step) for step, env in faults]
    table.add(block, 0, NUM_ROWS)
    rows = table.take(NUM_ROWS)
    ends = np.sort(rows["start"] + rows["length"])
    for number in (1, len(ends) // 2, len(ends)):
        goal, row = EpisodeGoal(number, NUM_ENVS, bool(num_reset_rows)), 0
        for step, env in faults:
            goal.note_faults(step, [env])
        while goal.num_missing:
            row = goal.count(block, row, min(row + int(draws.integers(1, 9)), NUM_ROWS))
        assert row == ends[number - 1] and goal.num_ended == np.count_nonzero(ends <= row)


def test_episodes_that_are_lost_between_two_starts_have_ended():
    goal = EpisodeGoal(9, 2, True)
    goal.begin_after(Past(seed=0, num_steps=10, episodes=np.array([2, 3]), starts=np.array([4, 11])), [0])
    assert goal.num_ended == 6 and goal.num_missing == 3
