"""Functional envs in JAX as slices."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.envs.jax_slices import gymnax, jax_slice
from mpi_rollout.envs.rollout import Rollout, RolloutColumns
from mpi_rollout.errors import UsageError

jax = pytest.importorskip("jax")

from jax_envs import HOP, Growing, Hop, Nested, Slow, hops, wides  # noqa: E402
from noticing import note_only, noted  # noqa: E402

from mpi_rollout.envs.jax_slices import backend  # noqa: E402

NUM_ENVS = 37  # More than are reset at once.
ACTIONS = np.random.default_rng(0).integers(0, 2, (90, NUM_ENVS))
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def stepped(envs: Any, actions: np.ndarray) -> Rows:
    """What envs give step by step."""
    rows = [envs.step(batch)[:4] for batch in actions]
    return tuple(np.stack(column) for column in zip(*rows, strict=True))  # type: ignore[return-value]


def rolled(envs: Any, actions: np.ndarray, length: int) -> Rows:
    """The same in fragments."""
    shape = actions.shape[:2]
    observations = np.empty(shape + envs.single_observation_space.shape, envs.single_observation_space.dtype)
    rows = observations, np.empty(shape), np.empty(shape, bool), np.empty(shape, bool)
    for start in range(0, len(actions), length):
        part = slice(start, start + length)
        envs.rollout(actions[part], RolloutColumns(*(row[part] for row in rows)))
    return rows


def alone(env: Any, seed: int, index: int, actions: np.ndarray, limit: int | None = None) -> list[tuple[Any, ...]]:
    """The steps of one env, by the text of the docs."""
    fold_in, rows, episode, is_over = jax.random.fold_in, [], 0, True
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for number in range(-1, len(actions)):
        if is_over:
            key, time, is_over = fold_in(fold_in(jax.random.key(seed), index), episode), 0, False
            episode += 1
            observation, state = reset(fold_in(key, 0))
            rows.append((np.asarray(observation), 0.0, False, False))
            continue
        time += 1
        observation, state, reward, done, infos = step(fold_in(key, time), state, actions[number])
        by_env = bool(infos.get("truncated", False))
        truncated = by_env or (limit is not None and time >= limit)
        terminated = bool(done) and not by_env
        is_over = terminated or truncated
        rows.append((np.asarray(observation), float(reward), terminated, truncated))
    return rows


def assert_same(some: Rows, others: Rows) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


def assert_as_alone(env: Any, rows: Rows, first: np.ndarray, seed: int, limit: int | None, places: Any) -> None:
    for place in places:
        expected = alone(env, seed, place, ACTIONS[: len(rows[0]), place], limit)
        assert np.array_equal(first[place], expected[0][0])
        for got, wanted in zip(rows, zip(*expected[1:], strict=True), strict=True):
            assert np.array_equal(got[:, place], np.stack(wanted)), place


@pytest.mark.parametrize(("kind", "limit"), [(Hop, 5), (Slow, None)])
def test_steps_are_those_of_the_env_alone(kind: type[Hop], limit: int | None):
    env = kind()
    envs = jax_slice(env, range(NUM_ENVS), 7, max_episode_steps=limit)
    first, infos = envs.reset(seed=7)
    rows = stepped(envs, ACTIONS[:30])
    assert infos == {} and isinstance(envs, Rollout) and envs.reproducibility == Reproducibility.EPISODE
    assert rows[0].dtype == np.float32 and rows[1].dtype == np.float64
    assert_as_alone(env, rows, first, 7, limit, (0, NUM_ENVS - 1))
    assert rows[2].sum() + rows[3].sum() > NUM_ENVS


def test_a_rollout_gives_the_same_as_steps():
    envs, others = hops(range(NUM_ENVS), 3), hops(range(NUM_ENVS), 3)
    envs.reset()
    others.reset()
    rows = rolled(envs, ACTIONS, 70)
    assert_same(rows, stepped(others, ACTIONS))
    assert np.array_equal(envs.last_observations(), rows[0][-1])
    assert envs._backend.chunk == 64


def test_another_number_of_steps_compiles_nothing():
    envs = hops(range(NUM_ENVS), 3)
    envs.reset()
    rolled(envs, ACTIONS, 64)
    before = backend.advance._cache_size(), backend.begin._cache_size()
    rolled(envs, ACTIONS, 9)
    stepped(envs, ACTIONS[:3])
    others = hops(range(NUM_ENVS, 2 * NUM_ENVS), 4)
    others.reset(seed=5)
    others.step(ACTIONS[0])
    assert (backend.advance._cache_size(), backend.begin._cache_size()) == before


@pytest.mark.parametrize("has_observations", [True, False])
def test_what_steps_need_can_be_compiled_before_the_first_of_them(has_observations: bool):
    envs, others = (jax_slice(Hop(), range(NUM_ENVS), 3) for _ in range(2))
    envs.compile_steps(has_observations)
    before = backend.advance._cache_size(), backend.begin._cache_size()
    first, _ = envs.reset()
    rewards = np.zeros((9, NUM_ENVS))
    rows = rolled(envs, ACTIONS[:9], 9) if has_observations else (None, rewards)
    if not has_observations:
        envs.rollout(ACTIONS[:9], RolloutColumns(rewards=rewards))
    assert (backend.advance._cache_size(), backend.begin._cache_size()) == before
    assert np.array_equal(first, others.reset()[0])
    assert np.array_equal(rows[1], rolled(others, ACTIONS[:9], 9)[1])


def test_any_slice_gives_the_same():
    whole, cut = hops(range(NUM_ENVS), 3), 18
    whole.reset()
    expected = rolled(whole, ACTIONS, 30)
    for mine in (range(cut), range(cut, NUM_ENVS)):
        part = hops(mine, 3)
        part.reset()
        columns = tuple(np.ascontiguousarray(column[:, mine.start : mine.stop]) for column in expected)
        assert_same(rolled(part, ACTIONS[:, mine.start : mine.stop], 9), columns)


def test_what_nobody_reads_is_not_made():
    envs, others = hops(range(NUM_ENVS), 3), hops(range(NUM_ENVS), 3)
    envs.reset()
    expected = (others.reset(), rolled(others, ACTIONS, 90))[1]
    rewards, ends = np.full((90, NUM_ENVS), 9.0), np.ones((90, NUM_ENVS), bool)
    envs.rollout(ACTIONS[:70], RolloutColumns(rewards=rewards, terminations=ends))
    assert np.array_equal(rewards[:70], expected[1][:70]) and (rewards[70:] == 9).all()
    assert np.array_equal(ends[:70], expected[2][:70]) and ends[70:].all()
    assert np.array_equal(envs.last_observations(), expected[0][69])


@pytest.mark.parametrize("num_envs", [5, 40])
def test_envs_whose_data_depend_on_the_width_of_their_batch_promise_less_and_that_is_told(num_envs: int):
    note_only()
    for factory, promised in ((hops, Reproducibility.EPISODE), (wides, Reproducibility.SLICE)):
        envs = make_slice(EnvMaker(factory, vectorization_mode="native"), range(num_envs), 3)
        envs.compile_steps(has_observations=True)
        assert envs.reproducibility == promised
    [told] = noted()
    assert told.startswith(f"envs 0 to {num_envs - 1}: an env gives other data for the same keys in a batch of another")


def test_resets_begin_the_next_episodes_and_a_seed_the_first():
    envs = hops(range(NUM_ENVS), 3)
    first, _ = envs.reset()
    mask = np.arange(NUM_ENVS) < 4
    some, _ = envs.reset(options={"reset_mask": mask})
    assert np.array_equal(some[4:], first[4:]) and envs.episodes.tolist() == [1] * 4 + [0] * 33
    assert not (some[:4] == first[:4]).all(axis=1).any()
    envs.reset()
    assert envs.episodes.tolist() == [2] * 4 + [1] * 33
    assert np.array_equal(envs.reset(seed=3)[0], first)
    for seed in (4, 3 + 2**32, 3 + 2**70):
        assert not np.array_equal(envs.reset(seed=seed)[0], first)
    with pytest.raises(ResetNeeded):
        hops(range(3), 0).step(ACTIONS[0, :3])


def test_observations_and_actions_may_have_parts():
    envs, others = jax_slice(Nested(), range(5), 3), hops(range(5), 3)
    observations, _ = envs.reset()
    assert np.array_equal(observations["both"], others.reset()[0]) and observations["where"].dtype == np.int64
    pushes = np.full((5, 2), 0.25, np.float32)
    for batch in ACTIONS[:, :5]:
        got, rewards, *ends, _ = envs.step((batch, pushes))
        expected, other_rewards, *other_ends, _ = others.step(batch)
        assert np.array_equal(got["both"], expected) and np.array_equal(got["where"], expected[:, 0] + 100)
        assert np.array_equal(ends, other_ends) and set(rewards - other_rewards) <= {0.0, 0.5}
    assert envs.observation_space.contains(got)


def test_an_env_without_an_observation_space_gets_one():
    class Plain:
        reset, step, _observe = Hop.reset, Hop.step, Hop._observe

    envs = jax_slice(Plain(), range(3), 0, action_space=Hop.action_space)
    assert envs.single_observation_space.shape == (2,) and not envs.single_observation_space.is_bounded()
    with pytest.raises(UsageError, match="JAX env Plain needs an action_space of Gymnasium, got None"):
        jax_slice(Plain(), range(3), 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            partial(jax_slice, Growing()),
            r"must return state\['time'\] as int32 of shape \(\) as reset does, got float32",
        ),
        (partial(jax_slice, HOP, observation_space=Nested.observation_space), "not nested as its space"),
        (
            partial(jax_slice, HOP, max_episode_steps=0),
            "max_episode_steps of JAX envs must be an integer from 1 on, got 0",
        ),
        (partial(jax_slice, HOP, max_episode_steps="9"), "must be an integer from 1 on, got '9'"),
        (partial(jax_slice, HOP, observation_space=Nested.observation_space["where"]), r"shape \(\), got \(2,\)"),
    ],
)
def test_what_cannot_be_compiled_is_refused(make: Any, message: str):
    with pytest.raises(UsageError, match=message):
        make(range(3), 0)


def test_the_program_makes_them_by_a_factory():
    envs = EnvMaker(hops, {"max_episode_steps": 9}, "native").native(range(2, 5), 9)
    assert envs.reproducibility == Reproducibility.EPISODE and isinstance(envs, Rollout)
    direct = hops(range(2, 5), 9)
    assert np.array_equal(envs.reset(seed=9)[0], direct.reset()[0])


@pytest.mark.parametrize(("task", "limit"), [("CartPole-v1", 30), ("Breakout-MinAtar", 40), ("Pendulum-v1", 20)])
def test_envs_of_gymnax(task: str, limit: int):
    library = pytest.importorskip("gymnax")
    params = {"max_steps_in_episode": limit}
    envs = gymnax(range(NUM_ENVS), 5, task, params)
    actions = np.stack([envs.action_space.sample() for _ in range(60)])
    first, _ = envs.reset()
    rows = rolled(envs, actions, 25)
    env, defaults = library.make(task)
    mine = defaults.replace(**params)
    for place in (0, 20):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), place), 0)
        observation, state = env.reset_env(jax.random.fold_in(key, 0), mine)
        assert np.array_equal(observation, first[place])
        ends, row = np.zeros(2, bool), -1
        while not ends.any():
            row += 1
            key_of_step = jax.random.fold_in(key, row + 1)
            observation, state, reward, terminated, _ = env.step_env(key_of_step, state, actions[row, place], mine)
            ends = np.array([terminated, row + 1 == limit])
            np.testing.assert_allclose(rows[0][row, place], observation, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(rows[1][row, place], reward, rtol=1e-5, atol=1e-5)
            assert [rows[2][row, place], rows[3][row, place]] == ends.tolist()
    assert rows[2].any() != (task == "Pendulum-v1") and (rows[3].any() or task == "Breakout-MinAtar")


def test_envs_of_brax():
    library = pytest.importorskip("brax.envs")
    from mpi_rollout.envs.jax_slices import brax

    envs, half = brax(range(6), 5, "fast", max_episode_steps=20), brax(range(3, 6), 5, "fast", max_episode_steps=20)
    assert "fast" in library._envs  # Brax's own small one, for tests.
    first, _ = envs.reset()
    assert np.array_equal(first[3:], half.reset()[0])
    actions = np.random.default_rng(0).uniform(-1, 1, (30, *envs.action_space.shape)).astype(np.float32)
    rows = rolled(envs, actions, 12)
    assert_same(rolled(half, actions[:, 3:], 30), tuple(np.ascontiguousarray(row[:, 3:]) for row in rows))
    assert rows[3].any()


@pytest.mark.parametrize("library", ["gymnax", "brax"])
def test_unknown_tasks_are_refused_with_near_ones(library: str):
    pytest.importorskip({"brax": "brax.envs"}.get(library, library))
    import mpi_rollout.envs.jax_slices as room

    make = getattr(room, library)
    for task in ("cartpol", 3):
        with pytest.raises(UsageError, match=f"env_kwargs: {library} has no task {task!r}; there are "):
            make(range(2), 0, task)
