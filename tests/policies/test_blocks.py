"""Policies that are asked in blocks: what they give an env depends on nothing but that env."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from block_policies import Acting, Sampling, Steering
from envs import Nested
from gymnasium import spaces

from mpi_rollout.core.spaces import leaves, tree_of
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.memory import kept
from mpi_rollout.policies.model import made_model
from mpi_rollout.policies.sampling import Uniforms

PENDULUM, CARTPOLE = spaces.Box(-8, 8, (3,)), spaces.Box(-np.inf, np.inf, (4,))
TORQUE, PUSH = spaces.Box(-2, 2, (1,)), spaces.Discrete(2)
CUTS = [[1], [64], [10, 70, 71, 128]]


def policy_of(policy: Any, *space: spaces.Space, num_envs: int = 300, **options: Any) -> BlockPolicy:
    return policies_of(policy, *space, cuts=[range(num_envs)], **options)[0]


def policies_of(policy: Any, *space: spaces.Space, cuts: list[range], **options: Any) -> list[BlockPolicy]:
    return [BlockPolicy(made_model(policy, "it"), *space, envs, **options) for envs in cuts]


def slices(cuts: list[int], num_envs: int) -> list[range]:
    return [range(start, stop) for start, stop in pairwise([0, *cuts, num_envs])]


@pytest.mark.parametrize("block", [1, 64])
@pytest.mark.parametrize("cuts", CUTS)
def test_a_row_has_the_same_bits_whichever_rows_are_asked_for(cuts: list[int], block: int):
    observations = np.random.default_rng(1).normal(size=(300, 3)).astype(np.float32)
    whole = policy_of(Steering(), PENDULUM, TORQUE, block=block)(observations, 0).actions
    policies = policies_of(Steering(), PENDULUM, TORQUE, cuts=slices(cuts, 300), block=block)
    parts = [policy(observations[policy.envs.start : policy.envs.stop], 0).actions for policy in policies]
    assert whole.shape == (300, 1) and whole.tobytes() == np.concatenate(parts).tobytes()


def test_a_block_is_filled_up_with_zeros_and_with_the_indices_of_its_envs():
    class Looking:
        def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
            assert env_indices.tolist() in (list(range(64)), list(range(64, 128))) and uniforms.shape == (64, 0)
            is_asked = (env_indices >= 60) & (env_indices < 66)
            assert (observations == np.where(is_asked, env_indices, 0)[:, np.newaxis]).all()
            return env_indices % 2

    given = np.repeat(np.arange(60, 66, dtype=np.float32)[:, np.newaxis], 4, axis=1)
    [policy] = policies_of(Looking(), CARTPOLE, PUSH, cuts=[range(60, 66)])
    assert policy(given, 0).actions.tolist() == [0, 1, 0, 1, 0, 1]


def test_rows_of_no_env_are_zero_again_where_the_model_has_written_to_them():
    class Writing:
        def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
            seen.append(observations.copy())
            observations += 1
            return env_indices % 2

    seen: list[np.ndarray] = []
    [policy] = policies_of(Writing(), CARTPOLE, PUSH, cuts=[range(60, 66)])
    for _ in range(2):
        policy(np.full((6, 4), 5, np.float32), 0)
    assert [batch.sum() for batch in seen] == [80.0, 40.0] * 2


def test_a_model_may_give_the_same_memory_again():
    class Frugal:
        extras = {"value": "i8"}
        actions, values = np.zeros(64, np.int64), np.zeros(64, np.int64)

        def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> Any:
            self.actions[...], self.values[...] = env_indices // 64, env_indices
            return self.actions, {"value": self.values}

    acted = policy_of(Frugal(), CARTPOLE, PUSH, num_envs=100)(np.zeros((100, 4), np.float32), 0)
    assert acted.actions.tolist() == [0] * 64 + [1] * 36 and acted.extras[0].tolist() == [*range(100)]


@pytest.mark.parametrize("cuts", CUTS)
def test_draws_and_extras_depend_on_seed_env_and_step(cuts: list[int]):
    observations = np.zeros((300, 4), np.float32)
    steps = (0, 5, 63, 64, 130)
    policy, other = policy_of(Sampling(), CARTPOLE, PUSH), policy_of(Sampling(), CARTPOLE, PUSH, seed=1)
    whole = [policy(observations, step) for step in steps]
    policies = policies_of(Sampling(), CARTPOLE, PUSH, cuts=slices(cuts, 300))
    for step, expected in zip(reversed(steps), reversed(whole), strict=True):
        parts = [part(observations[part.envs.start : part.envs.stop], step) for part in policies]
        assert np.array_equal(np.concatenate([part.actions for part in parts]), expected.actions)
        for place, leaf_shape in enumerate([(), (2,)]):
            column = np.concatenate([part.extras[place] for part in parts])
            assert column.shape == (300, *leaf_shape) and np.array_equal(column, expected.extras[place])
    drawn = [acted.actions.tobytes() for acted in whole]
    assert len({*drawn, *(other(observations, step).actions.tobytes() for step in steps)}) == 10
    other.seed(0)
    assert other(observations, 5).actions.tobytes() == drawn[1]


def test_uniforms_are_uniform_and_forgotten():
    uniforms = Uniforms(np.array([1, 2], np.uint64), range(5, 205), 3)
    drawn = np.array([uniforms.at(step) for step in range(300)])
    assert drawn.shape == (300, 200, 3) and drawn.min() >= 0 and drawn.max() < 1
    counts = np.histogram(drawn, 10, (0, 1))[0]
    assert abs(counts - drawn.size / 10).max() < 5 * np.sqrt(drawn.size / 10)
    uniforms.forget(256)
    assert list(uniforms._drawn) == [4] and np.array_equal(uniforms.at(3), drawn[3])


def test_trees_keep_their_nesting():
    space, actor = Nested.observation_space, Nested.action_space
    rng = np.random.default_rng(0)
    observations = [rng.integers(0, 2, (70, *leaf.shape)).astype(leaf.dtype) for leaf in leaves(space)]

    class Echo:
        def act(self, given: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> Any:
            for leaf, array in zip(leaves(space), observations, strict=True):
                rows = env_indices[env_indices < 70]
                assert np.array_equal(leaf.of(given)[: len(rows)], array[rows])
            return tree_of(actor, [np.full((64, *leaf.shape), 1, leaf.dtype) for leaf in leaves(actor)])

    actions = policy_of(Echo(), space, actor, num_envs=70)(tree_of(space, observations), 0).actions
    assert [leaf.of(actions).shape for leaf in leaves(actor)] == [(70, *leaf.shape) for leaf in leaves(actor)]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_a_state_is_copied_and_keeps_its_types():
    state = Pair(np.zeros((3, 2)), [np.ones(3), {"a": (np.ones(3), None)}])
    copied = kept(state, 3)
    state.first[...] = 5
    assert isinstance(copied, Pair) and not copied.first.any() and isinstance(copied.second[1]["a"], tuple)


@pytest.mark.parametrize(
    ("given", "extras", "problem"),
    [
        (np.zeros(3, int), {}, r"must give actions of 64 envs, .* got an array of shape \(3,\)"),
        (1, {}, r"got an array of shape \(\)"),
        (
            (np.zeros(64, int), None),
            {},
            r"must return actions alone, returns a tuple of 2; .*predict\(observations\)\[0",
        ),
        ((np.zeros(64, int), np.zeros(64, int)), {}, "must return actions alone, returns a tuple of 2"),
        (np.zeros(64, int), {"value": "f4"}, "must give actions and a dict of value, got ndarray"),
        ((np.zeros(64, int), {}), {"value": "f4"}, "extra 'value' cannot be read: KeyError"),
        ((np.zeros(64, int), {"value": np.zeros((64, 1), "f4")}), {"value": "f4"}, r"got float32 of shape \(64, 1\)"),
        ((np.zeros(64, int), {"value": np.zeros(64, "f8")}), {"value": "i4"}, "must be int32 of shape"),
    ],
)
def test_what_fits_no_block_is_refused(given: Any, extras: dict, problem: str):
    policy = Acting(lambda *_: given)
    policy.extras = extras
    with pytest.raises(ActionError, match=problem):
        policy_of(policy, CARTPOLE, PUSH, num_envs=5)(np.zeros((5, 4), np.float32), 0)
