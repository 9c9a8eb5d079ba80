"""Where the envs of a run stood, and the seeds of the episodes that they take again."""

import numpy as np

from mpi_rollout.core.seeding import Reproducibility, episode_seeds
from mpi_rollout.envs.replaying import Past


def past(*starts: int, num_steps: int = 10) -> Past:
    return Past(7, num_steps, np.arange(len(starts)), np.array(starts))


def test_the_first_step_to_be_taken_again_is_that_of_the_oldest_running_episode():
    assert past(8, 3, 10).first_step == 3
    assert past(10, 10).first_step == 10
    assert past(11, 11).first_step == 10  # No episode is running.
    assert past(11, 9).first_step == 9


def test_the_seeds_of_an_env_go_on_behind_its_finished_episodes():
    all_seeds = episode_seeds(7, 1)
    expected = [next(all_seeds) for _ in range(4)]
    seeds = past(3, 3).seeds(1)  # It has finished one.
    assert [next(seeds) for _ in range(3)] == expected[1:]
    assert next(past(3, 3).seeds(1, extra=1)) == expected[2]


def test_envs_without_seeds_of_episodes_take_all_steps_again():
    past = Past(7, 10, np.zeros(2, int), np.array([8, 3]), Reproducibility.ENV)
    assert past.first_step == 0 and past.first_steps.tolist() == [0, 0]


def test_seeds_that_are_given_count():
    given = Past(7, 3, np.zeros(2, int), np.zeros(2, int), given_seeds=(30, 40))
    assert list(given.seeds(1)) == [40]
