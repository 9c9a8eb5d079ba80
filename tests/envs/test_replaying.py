"""Episodes taken again: the first difference is found wherever it is, and envs come back to where they were."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from envs import Counting

from mpi_rollout.core.layout import RESULTS
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.envs.inputs import Reset
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.replaying import Past, Restoring, StoredEpisode, replay_episode

SEED = 2  # An episode of `Counting` with it has five steps.
LENGTH = 5
ACTIONS = np.array([3, 2, 6, 4, 5])


@pytest.fixture
def envs() -> LoopVectorEnv:
    return LoopVectorEnv([Counting], infos=False)


@pytest.fixture
def episode(envs: LoopVectorEnv) -> StoredEpisode:
    """The first episode of an env, as a run stores it."""
    envs.reset(seed=[SEED])
    observations = [envs.columns.observation_arrays[0].copy()]
    results = {leaf.path: [] for leaf in RESULTS}
    for action in ACTIONS:
        envs.step(np.array([action]))
        observations.append(envs.columns.observation_arrays[0].copy())
        for leaf, column in zip(RESULTS, envs.columns.results, strict=True):
            results[leaf.path].append(column.copy())
    assert results["terminations"][-1].all() and not np.any(results["terminations"][:-1])
    joined = [np.concatenate(rows) for rows in results.values()]
    return StoredEpisode(SEED, 0, [ACTIONS], [np.concatenate(observations)], joined)


def begun() -> tuple[LoopVectorEnv, Callable[[], Reset]]:
    """A new env, and what begins the episode."""
    envs = LoopVectorEnv([Counting], infos=False)
    return envs, lambda: envs.reset(seed=[SEED])


def test_an_episode_that_comes_out_the_same_has_no_difference(episode: StoredEpisode):
    assert replay_episode(*begun(), episode) is None


@pytest.mark.parametrize("row", range(LENGTH + 1))
def test_a_changed_observation_is_found_in_every_row(episode: StoredEpisode, row: int):
    changed = episode.observations[0].copy()
    changed[row, 2] += 1
    difference = replay_episode(*begun(), replace(episode, observations=[changed]))
    assert difference is not None and (difference.step, difference.name) == (row, "observations")


@pytest.mark.parametrize("step", range(LENGTH))
@pytest.mark.parametrize("number", range(len(RESULTS)), ids=[leaf.path for leaf in RESULTS])
def test_a_changed_result_is_found_in_every_step(episode: StoredEpisode, number: int, step: int):
    changed = [column.copy() for column in episode.results]
    changed[number][step] = 7.5 if number == 0 else not changed[number][step]
    difference = replay_episode(*begun(), replace(episode, results=changed))
    assert difference is not None and (difference.step, difference.name) == (step, RESULTS[number].path)


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


NUM_ENVS, NUM_STEPS, NUM_MORE = 3, 30, 6


def of_a_run() -> LoopVectorEnv:
    return LoopVectorEnv([Counting] * NUM_ENVS, infos=False, seeds=[episode_seeds(7, index) for index in range(3)])


def outputs_of(envs: LoopVectorEnv) -> list[np.ndarray]:
    """What follows from the seeds of episodes alone; `Counting` knows how many it had, and ends them by turns."""
    rewards, terminations, truncations = envs.columns.results
    return [envs.columns.observation_arrays[0][:, 2:].copy(), rewards.copy(), terminations | truncations]


def test_after_any_step_envs_are_brought_back_to_where_they_were():
    """Whether an episode runs, begins in the last row, or ended in the last step."""
    whole, draws = of_a_run(), np.random.default_rng(0)
    whole.reset()
    actions = draws.integers(2, 7, (NUM_STEPS + NUM_MORE, NUM_ENVS))
    pasts, outputs = [Past(7, 0, np.zeros(NUM_ENVS, int), np.zeros(NUM_ENVS, int))], [outputs_of(whole)]
    for num_steps, action in enumerate(actions, 1):
        whole.step(action)
        outputs.append(outputs_of(whole))
        ended = whole.columns.results[1] | whole.columns.results[2]
        before = pasts[-1]
        pasts.append(Past(7, num_steps, before.episodes + ended, np.where(ended, num_steps + 1, before.starts)))
    for past in pasts[1 : NUM_STEPS + 1]:
        envs = restored(past, actions)
        for step in range(past.num_steps, past.num_steps + NUM_MORE):
            envs.step(actions[step])
            for ours, expected in zip(outputs_of(envs), outputs[step + 1], strict=True):
                assert ours.tolist() == expected.tolist(), (past, step)
    begun = {int(start) - past.num_steps for past in pasts[1:-NUM_MORE] for start in past.starts}
    assert begun >= {-2, -1, 0, 1}


def restored(past: Past, actions: np.ndarray) -> LoopVectorEnv:
    """Envs that were brought back to where they were."""
    envs = of_a_run()
    restoring = Restoring(envs, range(NUM_ENVS), past)
    restoring.begin()
    for step in range(past.first_step, past.num_steps):
        restoring.step(step, actions[step])
    restoring.finish([])
    return envs
