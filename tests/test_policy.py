"""Random actions, and the check that all actions pass on their way in."""

from typing import Any

import numpy as np
import pytest
from conftest import Job
from envs import Nested
from gymnasium import spaces

from mpi_rollout.actions import ActionCheck
from mpi_rollout.config import load_callable
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.layout import leaves
from mpi_rollout.policy import RandomPolicy

INF, FLOAT32_MAX = np.inf, float(np.finfo(np.float32).max)
LEAVES = {
    "discrete": spaces.Discrete(3, start=-1),
    "discrete_one": spaces.Discrete(1),
    "discrete_256": spaces.Discrete(256),
    "discrete_1000": spaces.Discrete(1000, start=5),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "multi_discrete": spaces.MultiDiscrete([2, 300, 1]),
    "multi_discrete_start": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[-7, 0], [2, 100]]),
    "box": spaces.Box(-2, 3, (2,), np.float32),
    "box_scalar": spaces.Box(0, 1, (), np.float64),
    "box_16": spaces.Box(-1, 1, (3,), np.float16),
    "box_by_component": spaces.Box(np.array([-1, 10], np.float32), np.array([1, 30], np.float32)),
    "box_unbounded": spaces.Box(-INF, INF, (2,), np.float32),
    "box_from_below": spaces.Box(5, INF, (2,), np.float64),
    "box_from_above": spaces.Box(-INF, -3, (2,), np.float32),
    "box_mixed": spaces.Box(np.array([-INF, 0, -INF, -1.0]), np.array([INF, INF, 0, 1.0]), dtype=np.float64),
    "box_int": spaces.Box(-3, 4, (2,), np.int16),
    "box_bytes": spaces.Box(0, 255, (2,), np.uint8),
    "box_bool": spaces.Box(0, 1, (2,), np.bool_),
    "box_int_from_below": spaces.Box(0, INF, (2,), np.int64),
    "box_int_unbounded": spaces.Box(-INF, INF, (2,), np.int64),
    "box_all_of_float32": spaces.Box(-FLOAT32_MAX, FLOAT32_MAX, (2,), np.float32),
}


def drawn(space: spaces.Space, num_envs: int, num_steps: int, seed: int = 0, first_step: int = 0) -> list[np.ndarray]:
    """For each leaf the actions, of shape (num_steps, num_envs, ...)."""
    policy = RandomPolicy(space, num_envs, seed, first_step)
    rows = [policy() for _ in range(num_steps)]
    return [np.array([leaf.of(row) for row in rows]) for leaf in leaves(space)]


@pytest.mark.parametrize("kind", LEAVES)
def test_random_actions_are_in_the_space(kind: str):
    space = LEAVES[kind]
    (actions,) = drawn(space, 7, 130)
    assert actions.dtype == space.dtype and actions.shape == (130, 7, *space.shape)
    assert all(space.contains(np.asarray(action)) for row in actions for action in row)


@pytest.mark.parametrize("kind", LEAVES)
def test_random_actions_do_not_depend_on_the_number_of_envs(kind: str):
    (few,), (many,) = drawn(LEAVES[kind], 3, 150), drawn(LEAVES[kind], 40, 150)
    assert few.tobytes() == many[:, :3].tobytes()


@pytest.mark.parametrize("first_step", [1, 63, 64, 100, 128])
def test_random_actions_from_mid_run_are_those_of_the_whole_run(first_step: int):
    whole = drawn(Nested.action_space, 3, 150)
    rest = drawn(Nested.action_space, 3, 150 - first_step, first_step=first_step)
    assert all(part.tobytes() == array[first_step:].tobytes() for part, array in zip(rest, whole, strict=True))


@pytest.mark.parametrize("order", [[130, 0, 64, 63, 0, 200, 129], list(range(199, -1, -1))], ids=["some", "backwards"])
def test_random_actions_are_the_same_in_whatever_order_steps_are_asked_for(order: list[int]):
    expected = drawn(Nested.action_space, 3, 201)
    policy = RandomPolicy(Nested.action_space, 3, 0)
    for step in order:
        actions = policy.at(step)
        for leaf, column in zip(leaves(Nested.action_space), expected, strict=True):
            assert leaf.of(actions).tobytes() == column[step].tobytes()


def test_random_actions_that_were_forgotten_are_drawn_again_and_the_others_kept():
    policy = RandomPolicy(spaces.Box(0, 1, (), np.float64), 4, 0)
    first, kept = policy.at(5), policy.at(70)
    policy.forget(64 + 63)
    assert policy.at(70) is kept
    assert policy.at(5) is not first and policy.at(5).tobytes() == first.tobytes()


def test_random_actions_step_by_step_keep_no_more_than_a_block_of_steps():
    policy = RandomPolicy(spaces.Discrete(3), 2, 0)
    for _ in range(300):
        policy()
    assert len(policy._drawn) == 1


def test_random_actions_do_not_depend_on_observations():
    policy, other = RandomPolicy(spaces.Discrete(9), 4, 0), RandomPolicy(spaces.Discrete(9), 4, 0)
    assert [policy(np.zeros(4)).tolist() for _ in range(70)] == [other(None).tolist() for _ in range(70)]


def test_random_actions_depend_on_the_seed_the_env_and_the_step():
    space = spaces.Box(0, 1, (), np.float64)
    (first,), (second,) = drawn(space, 5, 200, seed=0), drawn(space, 5, 200, seed=1)
    both = np.concatenate([first, second]).ravel()
    assert len(np.unique(both)) == len(both)


def test_equal_leaves_of_one_space_are_drawn_independently():
    first, second = drawn(spaces.Tuple([spaces.Box(0, 1, (), np.float64)] * 2), 5, 200)
    assert not np.intersect1d(first, second).size


def test_actions_of_a_nested_space_are_contiguous_trees_of_its_batched_form():
    actions = RandomPolicy(Nested.action_space, 6, 0)()
    assert set(actions) == set(Nested.action_space.spaces) and isinstance(actions["move"], tuple)
    assert all(leaf.of(actions).flags.c_contiguous for leaf in leaves(Nested.action_space))


@pytest.mark.parametrize("kind", LEAVES)
def test_random_actions_are_distributed_as_by_gymnasium(kind: str):
    """The largest distance of the two empirical distributions, of each component: Kolmogorov and Smirnov's."""
    space = LEAVES[kind]
    space.seed(0)
    ours = drawn(space, 20, 200)[0].reshape(4000, -1).astype(np.float64)
    theirs = np.array([space.sample() for _ in range(4000)]).reshape(4000, -1).astype(np.float64)
    for first, second in zip(ours.T, theirs.T, strict=True):
        places = np.union1d(first, second)
        shares = [np.searchsorted(np.sort(values), places, side="right") / 4000 for values in (first, second)]
        assert np.abs(shares[0] - shares[1]).max() < 0.06


def batch(space: spaces.Space, num_envs: int = 4) -> Any:
    return RandomPolicy(space, num_envs, 0)()


@pytest.mark.parametrize("kind", LEAVES)
def test_the_check_accepts_what_is_in_the_space(kind: str):
    assert ActionCheck(LEAVES[kind])(batch(LEAVES[kind]), range(4)) is None


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), [0, 1, 2, 0]),
        (spaces.Discrete(3), np.array([0, 1, 2, 0], np.uint8)),
        (spaces.Discrete(3), np.array([True, False, True, False])),
        (spaces.Box(-1, 1, (2,), np.float32), np.full((4, 2), 0.3)),
        (spaces.Box(-1, 1, (2,), np.float32), np.ones((4, 2), np.int64)),
        (spaces.Box(-INF, INF, (2,), np.float32), np.full((4, 2), INF)),
        (spaces.MultiBinary(2), np.ones((4, 2), np.int64)),
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), [[0, 1, 2, 0], [0, 1, 1, 0]]),
    ],
    ids=str,
)
def test_the_check_accepts_what_can_be_cast_without_loss_of_meaning(space: spaces.Space, actions: Any):
    assert ActionCheck(space)(actions, range(4)) is None


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (spaces.Discrete(3), np.zeros(3, int), r"action must be int64 of shape \(4,\), got int64 of shape \(3,\)"),
        (spaces.Discrete(3), np.zeros((4, 1), int), r"of shape \(4,\), got int64 of shape \(4, 1\)"),
        (spaces.Discrete(3), np.zeros(4), r"action must be int64 of shape \(4,\), got float64 of shape \(4,\)"),
        (spaces.Box(0, 1, (2,)), np.zeros((2, 4)), r"must be float32 of shape \(4, 2\), got float64 of shape \(2, 4\)"),
        (spaces.Box(0, 1, (2,)), np.zeros((4, 2), "c8"), r"must be float32 .*, got complex64"),
        (spaces.MultiBinary(2), np.zeros((4, 2), "f4"), r"must be int8 .*, got float32"),
        (spaces.Discrete(3), None, r"action must be int64 of shape \(4,\), got object of shape \(\)"),
        (spaces.Box(0, 1, (2,)), [[0.0], [0.0, 1.0]], r"action cannot be read: ValueError"),
        (Nested.action_space, {}, r"action 'bits' cannot be read: KeyError: 'bits'"),
    ],
)  # fmt: skip
def test_the_check_refuses_a_wrong_shape_or_dtype(space: spaces.Space, actions: Any, message: str):
    with pytest.raises(DataError, match=message):
        ActionCheck(space)(actions, range(4))


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        ("discrete", (2,), 2, r"action for env 2 must be in -1 to 1, got 2; clip it in the policy"),
        ("discrete", (3,), -2, r"action for env 3 must be in -1 to 1, got -2"),
        ("multi_binary", (1, 0, 1), 2, r"action for env 1, component \[0, 1\] must be in 0 to 1, got 2"),
        ("multi_discrete_start", (0, 1, 0), 7, r"for env 0, component \[1, 0\] must be in 2 to 6, got 7"),
        ("box", (3, 1), 3.5, r"for env 3, component \[1\] must be in -2.0 to 3.0, got 3.5"),
        ("box", (0, 0), np.nan, r"for env 0, component \[0\] must be in -2.0 to 3.0, got nan"),
        ("box", (0, 0), -INF, r"for env 0, component \[0\] must be in -2.0 to 3.0, got -inf"),
        ("box_scalar", (1,), np.nan, r"action for env 1 must be in 0.0 to 1.0, got nan"),
        ("box_unbounded", (1, 1), np.nan, r"for env 1, component \[1\] must be in -inf to inf, got nan"),
        ("box_from_below", (1, 1), 4.9, r"for env 1, component \[1\] must be in 5.0 to inf, got 4.9"),
        ("box_by_component", (2, 1), 1.0, r"for env 2, component \[1\] must be in 10.0 to 30.0, got 1.0"),
        ("box_by_component", (2, 0), np.nan, r"for env 2, component \[0\] must be in -1.0 to 1.0, got nan"),
        ("box_int", (2, 0), 5, r"for env 2, component \[0\] must be in -3 to 4, got 5"),
    ],
)
def test_the_check_names_the_env_and_the_component_out_of_the_space(kind: str, place: tuple, value: Any, message: str):
    actions = batch(LEAVES[kind])
    actions[place] = value
    with pytest.raises(DataError, match=message):
        ActionCheck(LEAVES[kind])(actions, range(4))


def test_the_check_names_envs_by_the_indices_that_it_is_given():
    """As for a part of the envs, which a group or a ready rank is."""
    actions = np.zeros(4, np.int64)
    actions[2] = 3
    with pytest.raises(DataError, match=r"action for env 12 must be in 0 to 2, got 3"):
        ActionCheck(spaces.Discrete(3))(actions, np.array([3, 4, 12, 13]))


@pytest.mark.parametrize("value", [256 + 5, -256 + 5])
def test_the_check_refuses_what_would_wrap_around_in_the_cast(value: int):
    actions = np.zeros((4, 2), np.int64)
    actions[1, 0] = value
    with pytest.raises(DataError, match=rf"env 1, component \[0\] must be in 0 to 100, got {value}"):
        ActionCheck(spaces.Box(0, 100, (2,), np.int8))(actions, range(4))


def test_the_check_names_the_leaf_of_a_nested_action():
    actions = batch(Nested.action_space)
    actions["move"][1][3, 0] = 2
    with pytest.raises(DataError, match=r"action 'move/_index_1' for env 3, component \[0\] must be in -1.0 to 1.0"):
        ActionCheck(Nested.action_space)(actions, range(4))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:policy", "--policy no_such_module:policy: cannot import 'no_such_module': ModuleNotFound"),
        ("policies:no_such_policy", "--policy policies:no_such_policy: module 'policies' has no attribute"),
        ("policies:np.pi", "--policy policies:np.pi is float, not callable"),
        ("policies", "--policy must be MODULE:CALLABLE, got 'policies'"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_refused(spec: str, message: str):
    with pytest.raises(UsageError, match=message):
        load_callable(spec, "--policy")


@pytest.mark.parametrize(
    ("policy", "code", "message"),
    [
        ("too_large", 65, "the policy's action for env 1 must be in 0 to 1, got 2; clip it in the policy"),
        ("too_few", 65, "the policy's action must be int64 of shape (5,), got int64 of shape (4,)"),
        ("broken", 70, "ArithmeticError: the network has no weights"),
    ],
)
def test_a_run_ends_with_what_its_policy_did_wrong(job: Job, policy: str, code: int, message: str):
    result = job(2, "--env", "CartPole-v1", "--num-envs", "5", "--policy", f"policies:{policy}", "--out", "run.h5")
    assert result.code == code
    assert message in result.err
    assert not list(job.folder.glob("run.h5*"))
