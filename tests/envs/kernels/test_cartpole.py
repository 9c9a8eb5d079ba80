"""The vector env: each backend against the env in Python."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from kernel_checks import chosen_actions, empty_columns, rolled_out, same, single_envs, stepped
from kernel_checks import vector_env as make

from mpi_rollout.envs.rollout import Rollout, RolloutColumns
from mpi_rollout.errors import ActionError, UsageError

# The last one is torch on the CPU, with what it does on a device of another kind.
NEEDED = {"Numba": "numba", "Torch": "torch", "Torch as on a device": "torch"}
if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":  # As `test_numba_cuda.py` runs this file.
    NEEDED = {"CUDA": "numba"}

pytestmark = pytest.mark.any_mpi

MakeEnvs = Callable[..., VectorEnv]


@pytest.fixture(params=NEEDED)
def envs_of(request: pytest.FixtureRequest) -> MakeEnvs:
    if find_spec(NEEDED[request.param]) is None:
        pytest.skip(f"pip install {NEEDED[request.param]}")
    return on_device if "device" in request.param else partial(make, request.param)


def on_device(num_envs: int, **kwargs: Any) -> VectorEnv:
    envs: Any = make("Torch", num_envs, **kwargs)
    envs._backend._device._is_on_host = False
    return envs


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"max_episode_steps": 20},
    {"sutton_barto_reward": True, "max_episode_steps": 30},
    {"seed": 2**64 - 1, "first_env": 2**32 - 12},
)


@pytest.mark.parametrize("kwargs", VARIANTS)
def test_rollouts_equal_steps_of_single_envs_through_resets(envs_of: MakeEnvs, kwargs: dict[str, Any]):
    actions = chosen_actions(550, 12, **kwargs)
    envs, reference = envs_of(12, **kwargs), single_envs(12, **kwargs)
    assert envs.reset()[0].tobytes() == reference.reset()[0].tobytes()
    results, expected = rolled_out(envs, actions, 110), stepped(reference, actions)
    assert same(results, expected)
    assert [array.dtype for array in results] == [array.dtype for array in expected]
    assert results[2].any() and results[3].any(), "some episodes are terminated, some truncated"


def test_an_env_may_be_terminated_and_truncated_in_one_step(envs_of: MakeEnvs):
    actions = np.ones((12, 4), np.int64)
    reference = single_envs(4)
    reference.reset()
    last_step = int(np.argmax(stepped(reference, actions)[2][:, 0])) + 1
    envs, reference = (f(4, max_episode_steps=last_step) for f in (envs_of, single_envs))
    envs.reset(), reference.reset()
    results = stepped(envs, actions)
    assert same(results, stepped(reference, actions))
    assert np.any(results[2] & results[3])


def test_a_rollout_is_as_many_steps(envs_of: MakeEnvs):
    actions = chosen_actions(150, 12)
    step_by_step, at_once = envs_of(12), envs_of(12)
    assert isinstance(at_once, Rollout)
    step_by_step.reset(), at_once.reset()
    results = rolled_out(at_once, actions, 7)
    at_once.rollout(np.zeros((0, 12), np.int64), RolloutColumns(*empty_columns(0, 12)))  # It changes nothing.
    assert same(results, stepped(step_by_step, actions))
    assert at_once.last_observations().tobytes() == results[0][-1].tobytes()
    assert np.array_equal(at_once.episodes, step_by_step.episodes) and at_once.episodes.max() > 3


def test_slices_give_the_same_bytes_as_all_envs_in_one(envs_of: MakeEnvs):
    num_envs, bounds = 700, (0, 1, 258, 513, 700)  # More than one block of the kernel, and parts of blocks.
    actions = np.random.default_rng(0).integers(0, 2, (25, num_envs))
    parts = []
    for start, stop in ((0, num_envs), *pairwise(bounds)):
        envs = envs_of(stop - start, seed=7, first_env=start)
        observations, _ = envs.reset()
        parts.append((observations, *rolled_out(envs, actions[:, start:stop], 25)))
    whole, slices = parts[0], parts[1:]
    assert whole[0].tobytes() == np.concatenate([part[0] for part in slices]).tobytes()
    for number, array in enumerate(whole[1:], 1):
        assert array.tobytes() == np.concatenate([part[number] for part in slices], axis=1).tobytes()


def test_columns_may_be_parts_of_larger_arrays(envs_of: MakeEnvs):
    actions = np.random.default_rng(0).integers(0, 2, (40, 30))[:, 5:17]
    large = [np.full((40, 30, *array.shape[2:]), 9, array.dtype) for array in empty_columns(40, 30)]
    parts, envs, other = [array[:, 10:22] for array in large], envs_of(12), envs_of(12)
    envs.reset(), other.reset()
    envs.rollout(actions, RolloutColumns(*parts))
    assert same(tuple(parts), rolled_out(other, actions.copy(), 40))
    for array in large:
        array[:, 10:22] = 9
        assert np.all(array == np.array(9, array.dtype)), "what lies between the rows is left alone"


@pytest.mark.parametrize("left_out", [(0,), (1, 2), (0, 1, 2, 3)])
def test_columns_that_nobody_reads_may_be_left_out(envs_of: MakeEnvs, left_out: tuple[int, ...]):
    actions = chosen_actions(60, 12)
    expected, envs = envs_of(12), envs_of(12)
    expected.reset(), envs.reset()
    outcome = rolled_out(expected, actions, 60)
    columns = [None if place in left_out else array for place, array in enumerate(empty_columns(60, 12))]
    envs.rollout(actions, RolloutColumns(*columns))
    assert all(
        column is None or column.tobytes() == array.tobytes() for column, array in zip(columns, outcome, strict=True)
    )
    assert envs.last_observations().tobytes() == expected.last_observations().tobytes()


def test_columns_may_have_room_for_more_steps_and_be_used_in_turns(envs_of: MakeEnvs):
    actions, envs, other = chosen_actions(50, 12), envs_of(12), envs_of(12)
    envs.reset(), other.reset()
    expected, parts = rolled_out(other, actions, 50), []
    slots = empty_columns(20, 12), empty_columns(30, 12)
    columns = [RolloutColumns(*slot) for slot in slots]
    for turn, (start, stop) in enumerate(((0, 20), (20, 21), (21, 36), (36, 50))):
        unused = slots[turn % 2][0][stop - start :].copy()
        envs.rollout(actions[start:stop], columns[turn % 2])
        parts.append([array[: stop - start].copy() for array in slots[turn % 2]])
        assert np.array_equal(slots[turn % 2][0][stop - start :], unused, equal_nan=True)
    assert all(
        np.array_equal(np.concatenate(column), array)
        for column, array in zip(zip(*parts, strict=True), expected, strict=True)
    )


def test_spaces_and_metadata_are_gymnasiums(envs_of: MakeEnvs):
    envs, theirs = envs_of(5), gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(envs, name) == getattr(theirs, name)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP and envs.num_envs == 5
    observations, infos = envs.reset()
    assert observations in envs.observation_space and infos == {}
    assert envs.step(envs.action_space.sample())[4] == {}


def test_arrays_are_new_each_time(envs_of: MakeEnvs):
    envs = envs_of(4)
    observations, _ = envs.reset()
    first, later = (*envs.step(np.ones(4, int))[:4], observations), [envs.step(np.ones(4, int)) for _ in range(12)]
    assert later and np.all(np.abs(first[0][:, 1]) < 0.3) and not first[2].any() and np.all(np.abs(first[4]) < 0.05)


def test_a_seed_begins_again_and_none_goes_on(envs_of: MakeEnvs):
    envs, actions = envs_of(6, seed=4), chosen_actions(50, 6)
    first, _ = envs.reset()
    results = stepped(envs, actions)
    assert envs.reset(seed=4)[0].tobytes() == first.tobytes() and same(stepped(envs, actions), results)
    episodes = envs.episodes
    assert envs.reset()[0].tobytes() != first.tobytes() and np.array_equal(envs.episodes, episodes + 1)
    assert envs.reset(seed=5)[0].tobytes() != first.tobytes() and not envs.episodes.any()


def test_a_mask_resets_some_envs_and_leaves_the_others(envs_of: MakeEnvs):
    envs, other = envs_of(6), envs_of(6)
    envs.reset(), other.reset()
    actions = chosen_actions(40, 6)
    stepped(envs, actions), stepped(other, actions)
    mask = np.array([True, False, False, True, False, False])
    observations, infos = envs.reset(options={"reset_mask": mask})
    assert np.array_equal(observations[~mask], other.last_observations()[~mask]) and infos == {}
    assert np.all(np.abs(observations[mask]) < 0.05) and np.array_equal(envs.episodes, other.episodes + mask)
    expected, results = stepped(other, actions), stepped(envs, actions)
    assert all(a[:, ~mask].tobytes() == b[:, ~mask].tobytes() for a, b in zip(expected, results, strict=True))


def test_a_mask_ends_the_wait_for_a_reset(envs_of: MakeEnvs):
    envs = envs_of(1)
    envs.reset()
    while not envs.step(np.ones(1, int))[2][0]:
        pass
    envs.reset(options={"reset_mask": np.ones(1, bool)})
    _, rewards, *_ = envs.step(np.ones(1, int))
    assert rewards[0] == 1 and envs.episodes[0] == 1


def test_episodes_can_be_taken_again(envs_of: MakeEnvs):
    envs = envs_of(3)
    envs.reset()
    observations = [envs.reset()[0] for _ in range(4)]  # Episodes 1 to 4.
    again, _ = envs.reset(options={"episodes": np.array([2, 4, 1])})
    assert np.array_equal(again, [observations[1][0], observations[3][1], observations[0][2]])


def test_a_wrong_action_is_named_and_changes_nothing(envs_of: MakeEnvs):
    envs = envs_of(3, first_env=10)
    envs.reset()
    before, columns = envs.last_observations(), empty_columns(2, 3)
    for action in (2, -1, 2**40):
        must = rf"must be in Discrete\(2\), got {action}$"
        with pytest.raises(ActionError, match=f"the action of env 12 in row 1 {must}"):
            envs.rollout(np.array([[0, 1, 0], [1, 0, action]]), RolloutColumns(*columns))
        with pytest.raises(ValueError, match=f"the action of env 11 {must}"):
            envs.step(np.array([0, action, 5]))
    assert np.array_equal(envs.last_observations(), before) and np.all(np.isnan(columns[0]))


def test_what_is_no_batch_of_actions_is_refused(envs_of: MakeEnvs):
    envs = envs_of(3)
    envs.reset()
    for actions in (np.zeros(4, int), np.zeros(3), np.zeros((3, 1), int), np.zeros(3, bool), "ab", 0):
        with pytest.raises(ActionError, match=r"actions must be integers \(num_steps, 3\), got an array"):
            envs.step(actions)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, ">i8"])
def test_actions_may_be_any_integers(envs_of: MakeEnvs, dtype: Any):
    envs, actions = envs_of(3), chosen_actions(20, 3)
    envs.reset()
    results = stepped(envs, actions)
    envs.reset(seed=0)
    assert same(results, stepped(envs, actions.astype(dtype)))
    envs.reset(seed=0)
    actions = np.asfortranarray(actions)
    actions.flags.writeable = False
    assert same(results, rolled_out(envs, actions, 20))
    envs.reset(seed=0)
    assert same(results, rolled_out(envs, np.broadcast_to(actions, (2, 20, 3))[1], 20))
    with pytest.raises(ActionError, match=r"must be in Discrete\(2\), got 3"):
        envs.step(np.array([0, 1, 3], dtype))


@pytest.mark.parametrize(
    ("place", "array", "problem"),
    [
        (0, np.zeros((4, 3, 3), np.float32), r"observations must be an array \(4, 3, 4\) of float32, got \(4, 3, 3\)"),
        (1, np.zeros((4, 3), np.int64), "rewards must be an array .* of float64, got .* of int64"),
        (2, np.zeros((4, 3), np.uint8), "terminations must be an array .* of bool"),
        (3, np.zeros((3, 3), bool), r"truncations must be an array \(4, 3\) of bool, got \(3, 3\) of bool"),
        (3, [[0] * 3] * 4, "truncations must be an array .*, got list"),
        (1, np.zeros((3, 4)).T, "rewards must be writeable and aligned, with C-contiguous rows"),
        (1, np.zeros((4, 3))[::-1], "rewards must be writeable"),
        (1, np.broadcast_to(np.zeros(3), (4, 3)), "rewards must be writeable"),
    ],
)
def test_wrong_columns_are_named_and_nothing_changes(envs_of: MakeEnvs, place: int, array: Any, problem: str):
    envs, columns = envs_of(3), list(empty_columns(4, 3))
    before, _ = envs.reset()
    columns[place] = array
    with pytest.raises(ValueError, match=problem):
        envs.rollout(np.zeros((4, 3), int), RolloutColumns(*columns))
    assert np.array_equal(envs.last_observations(), before)


def test_columns_with_too_little_room_are_refused(envs_of: MakeEnvs):
    envs = envs_of(3)
    before, _ = envs.reset()
    with pytest.raises(ValueError, match="the columns have room for 4 steps, got actions of 5"):
        envs.rollout(np.zeros((5, 3), int), RolloutColumns(*empty_columns(4, 3)))
    assert np.array_equal(envs.last_observations(), before)


def test_a_first_step_needs_a_reset(envs_of: MakeEnvs):
    envs = envs_of(2)
    with pytest.raises(ResetNeeded):
        envs.step(np.zeros(2, int))
    with pytest.raises(ResetNeeded):
        envs.reset(options={"reset_mask": np.array([True, False])})


def test_wrong_resets_are_refused(envs_of: MakeEnvs):
    envs = envs_of(2)
    envs.reset()
    with pytest.raises(ValueError, match="a seed is for all envs"):
        envs.reset(seed=1, options={"reset_mask": np.array([True, False])})
    with pytest.raises(ValueError, match="episodes"):
        envs.reset(options={"episodes": [0, -1]})
    with pytest.raises(UsageError, match="seed of CartPole"):
        envs.reset(seed=[1, 2])


def test_wrong_arguments_are_named(envs_of: MakeEnvs):
    with pytest.raises(UsageError, match="num_envs of CartPole must be an integer from 1 to 4,294,967,296, got 0"):
        envs_of(0)
    for name, value in {"first_env": 2**32 - 1, "max_episode_steps": 0, "seed": 2**64}.items():
        with pytest.raises(UsageError, match=f"{name} of CartPole must be an integer from "):
            envs_of(2, **{name: value})
