"""Natively vectorized envs that begin episodes by number: brought back to where they were, at any step of a run."""

from itertools import islice

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from native_envs import seeded

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.native import NativeVectorEnv, takes_episode_seeds
from mpi_rollout.envs.native_replaying import NativeRestoring
from mpi_rollout.envs.replaying import Past
from mpi_rollout.envs.rollout import Rollout, RolloutColumns
from mpi_rollout.errors import UsageError


def jax_hops(env_indices: range, seed: int) -> VectorEnv:
    from jax_envs import hops  # Which imports JAX.

    return hops(env_indices, seed)


SEED, NUM_STEPS, SOME = 5, 60, range(3, 8)
ENTRY_POINT = {"vectorization_mode": "vector_entry_point", "num_threads": 1}
SHORT = {"max_num_frames_per_episode": 80, "repeat_action_probability": 0.25}
MAKERS = {
    "factory": (EnvMaker(seeded, {"ends_at": 9}, "native"), "numpy"),
    "numba": (EnvMaker("mpi_rollout/CartPoleNumba-v0", {}, **ENTRY_POINT), "numba"),
    "ale": (EnvMaker("ale_py:ALE/Breakout-v5", SHORT, **ENTRY_POINT), "ale_py"),
    "jax": (EnvMaker(jax_hops, {}, "native"), "jax"),
}


def made(name: str) -> NativeVectorEnv:
    maker, needed = MAKERS[name]
    pytest.importorskip(needed)
    return maker.native(SOME, SEED)


def actions_of(envs: NativeVectorEnv) -> np.ndarray:
    return np.random.default_rng(1).integers(0, envs.single_action_space.n, (NUM_STEPS, len(SOME)))


def whole_run(envs: NativeVectorEnv) -> list[list[np.ndarray]]:
    """The first observations, and what each step gives."""
    rows = [[np.array(envs.reset(seed=SEED)[0])]]
    return rows + [[np.array(array) for array in envs.step(row)[:4]] for row in actions_of(envs)]


def past_of(rows: list[list[np.ndarray]], num_steps: int) -> Past:
    """Where a run stood after some of its steps, for all envs of a job."""
    episodes, starts = np.zeros((2, SOME.stop), np.int64)
    for step, (_, _, terminations, truncations) in enumerate(rows[1 : num_steps + 1]):
        ends = terminations | truncations
        episodes[SOME.start :] += ends
        starts[SOME.start :][ends] = step + 2
    return Past(SEED, num_steps, episodes, starts)


@pytest.mark.parametrize("name", MAKERS)
def test_envs_are_brought_back_to_any_step(name: str):
    envs = made(name)
    rows, actions = whole_run(envs), actions_of(envs)
    assert envs.reproducibility == Reproducibility.EPISODE
    ends = np.flatnonzero([(row[2] | row[3]).any() for row in rows[1:]])
    assert len(ends) > 1
    for num_steps in {0, 1, NUM_STEPS - 1, *(ends[:3] + 1).tolist(), *(ends[:3] + 2).tolist()}:
        past = past_of(rows, num_steps)
        restoring = NativeRestoring(envs, SOME, past)
        begun = restoring.begin()[0]
        for place, start in enumerate(past.starts[SOME.start :]):
            assert start > num_steps or np.array_equal(begun[place], rows[start][0][place])
        for step in range(past.first_step, num_steps):
            given = restoring.step(step, actions[step])
            is_back = past.starts[SOME.start :] <= step
            assert all(np.array_equal(a[is_back], b[is_back]) for a, b in zip(given, rows[step + 1], strict=False))
        restoring.finish([])
        for step in range(num_steps, NUM_STEPS):
            given = envs.step(actions[step])
            assert all(np.array_equal(a, b) for a, b in zip(given, rows[step + 1], strict=False))
    envs.close()


@pytest.mark.parametrize("num_more", [1, 7])
def test_envs_that_are_due_begin_in_the_first_row_of_a_fragment(num_more: int):
    envs = made("numba")
    rows, actions = whole_run(envs), actions_of(envs)
    num_steps = int(np.flatnonzero([row[2].any() for row in rows[1:]])[0]) + 1
    restoring = NativeRestoring(envs, SOME, past_of(rows, num_steps))
    restoring.begin()
    for step in range(num_steps):
        restoring.step(step, actions[step])
    restoring.finish([])
    assert isinstance(envs, Rollout)
    columns = RolloutColumns(*(np.zeros((9, *array.shape), array.dtype) for array in rows[1]))
    for start in (num_steps, num_steps + num_more):
        envs.rollout(actions[start : start + num_more], columns)
        for row in range(num_more):
            given = columns.observations, columns.rewards, columns.terminations, columns.truncations
            assert all(np.array_equal(a[row], b) for a, b in zip(given, rows[start + row + 1], strict=True))


def test_a_lost_env_begins_the_episode_after_the_one_that_it_has_lost():
    envs = made("factory")
    rows, actions = whole_run(envs), actions_of(envs)
    past = past_of(rows, 3)
    restoring = NativeRestoring(envs, SOME, past)
    restoring.begin()
    for step in range(3):
        restoring.step(step, actions[step])
    restoring.finish([4])
    observations, rewards, terminations, _, _ = envs.step(actions[3])
    _, second = (seed & 0x7FFFFFFF for seed in islice(episode_seeds(SEED, 4), 2))
    first = np.random.default_rng(second).random()
    assert observations[1].tolist() == [0, np.float32(first)] and rewards[1] == 0 and not terminations[1]
    assert np.array_equal(observations[0], rows[4][0][0])


def test_episodes_have_the_seeds_of_a_loop_and_do_not_depend_on_the_others():
    envs = made("factory")
    rows = whole_run(envs)
    seeds = {place: episode_seeds(SEED, index) for place, index in enumerate(SOME)}
    begins = np.ones(len(SOME), bool)
    for row in rows:
        for place in np.flatnonzero(begins):
            first = np.random.default_rng(next(seeds[place]) & 0x7FFFFFFF).random()
            assert row[0][place].tolist() == [0, np.float32(first)]
        begins = np.logical_or(*row[2:]) if row is not rows[0] else np.zeros(len(SOME), bool)


def test_envs_without_a_seed_are_left_alone():
    envs = MAKERS["ale"][0].native(SOME) if pytest.importorskip("ale_py") else None
    assert envs is not None and envs.reset()[0].shape == (len(SOME), 4, 84, 84)
    assert envs.step(np.zeros(len(SOME), np.int64))[0].shape == (len(SOME), 4, 84, 84)
    envs.close()


def test_ales_episodes_have_seeds_where_its_version_can_reset_some_envs():
    for version in ("0.10.1", "0.11", "0.12.0", "0.12"):
        assert not takes_episode_seeds(None, version) and not takes_episode_seeds(False, version)
        with pytest.raises(UsageError, match=rf"episode_seeds needs ale-py 0\.12\.1 or later, got {version}"):
            takes_episode_seeds(True, version)
    for version in ("0.12.1", "0.12.2rc1", "0.13", "1.0.0"):
        assert takes_episode_seeds(None, version) and not takes_episode_seeds(False, version)


def test_ale_promises_less_where_nobody_wants_seeds_of_episodes():
    pytest.importorskip("ale_py")
    envs = EnvMaker("ale_py:ALE/Breakout-v5", {"episode_seeds": False}, **ENTRY_POINT).native(SOME, SEED)
    assert envs.reproducibility == Reproducibility.ENV and not hasattr(envs, "has_episode_seeds")
    envs.close()
