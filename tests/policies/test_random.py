"""Random actions, and what a run stores of actions."""

import numpy as np
import pytest
from action_spaces import LEAVES
from envs import Nested
from gymnasium import spaces
from jobs import Job, Start, datasets

from mpi_rollout.core.spaces import leaves
from mpi_rollout.policies.random import RandomPolicy


def drawn(space: spaces.Space, envs: int | range, num_steps: int, seed: int = 0) -> list[np.ndarray]:
    """For each leaf the actions, of shape (num_steps, envs, ...)."""
    policy = RandomPolicy(space, envs, seed)
    rows = [policy() for _ in range(num_steps)]
    return [np.array([leaf.of(row) for row in rows]) for leaf in leaves(space)]


@pytest.mark.parametrize("kind", LEAVES)
def test_random_actions_are_in_the_space(kind: str):
    space = LEAVES[kind]
    (actions,) = drawn(space, 7, 130)
    assert actions.dtype == space.dtype and actions.shape == (130, 7, *space.shape)
    assert all(space.contains(np.asarray(action)) for row in actions for action in row)


@pytest.mark.parametrize("start", [0, 3])
def test_bits_may_be_narrow(start: int):
    space = spaces.Discrete(2, start=start)
    wide, narrow = RandomPolicy(space, 70, 1), RandomPolicy(space, 70, 1)
    narrow.are_bits_narrow = True
    for step, num_steps in ((0, 3), (60, 10)):
        (expected,), (got,) = wide.rows(step, num_steps, range(5, 70)), narrow.rows(step, num_steps, range(5, 70))
        assert np.array_equal(expected, got) and set(np.unique(got)) == {start, start + 1}
        assert expected.dtype == np.int64 and got.dtype == (np.int64 if start else np.uint8)


RANGES = [range(1), range(60, 70), range(63, 193), range(199, 200)]


@pytest.mark.parametrize("envs", RANGES, ids=str)
@pytest.mark.parametrize("kind", LEAVES)
def test_a_rank_draws_for_its_own_envs_what_the_root_draws_for_them(kind: str, envs: range):
    policy = RandomPolicy(LEAVES[kind], 200, 3)
    (own,), (of_all,) = RandomPolicy(LEAVES[kind], envs, 3).rows(50, 30, envs), policy.rows(50, 30, range(200))
    assert own.shape == (30, len(envs), *LEAVES[kind].shape) and own.dtype == LEAVES[kind].dtype
    assert own.tobytes() == of_all[:, envs.start : envs.stop].tobytes()
    assert own.tobytes() == policy.rows(50, 30, envs)[0].tobytes()


@pytest.mark.parametrize(("step", "num_steps"), [(0, 64), (5, 20), (63, 2), (130, 71)])
def test_rows_are_the_actions_of_as_many_steps(step: int, num_steps: int):
    """Also those of several blocks of steps."""
    whole = drawn(Nested.action_space, 70, 201)
    rows = RandomPolicy(Nested.action_space, 70, 0).rows(step, num_steps, range(3, 67))
    for actions, column in zip(rows, whole, strict=True):
        assert actions.dtype == column.dtype
        assert actions.tobytes() == column[step : step + num_steps, 3:67].tobytes()


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
    assert np.shares_memory(policy.at(70), kept)
    assert not np.shares_memory(policy.at(5), first) and policy.at(5).tobytes() == first.tobytes()


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


def test_choices_by_masks_are_allowed_and_do_not_depend_on_other_envs():
    space, envs = spaces.MultiDiscrete([3, 4], start=[5, 0]), np.arange(70, 130)
    allowed = np.random.default_rng(0).random((60, 7)) < 0.5
    allowed[:, [0, 3]] = True
    packed = np.packbits(allowed, axis=1)
    whole = RandomPolicy(space, 200, 3).by_masks(5, envs, packed)
    assert whole.tobytes() == RandomPolicy(space, range(64, 150), 3).by_masks(5, envs, packed).tobytes()
    assert allowed[np.arange(60), whole[:, 0] - 5].all() and allowed[np.arange(60), 3 + whole[:, 1]].all()
    assert {*whole[:, 0]} == {5, 6, 7} and {*whole[:, 1]} == {0, 1, 2, 3}
    assert RandomPolicy(space, 200, 3).by_masks(5, envs[:2], packed[:2] * 0).tolist() == [[5, 0]] * 2


@pytest.mark.parametrize("kind", LEAVES)
def test_random_actions_are_distributed_as_by_gymnasium(kind: str):
    """The largest distance of the two empirical distributions, of each component: Kolmogorov and Smirnov's."""
    space = LEAVES[kind]
    space.seed(0)
    ours = drawn(space, 20, 100)[0].reshape(2000, -1).astype(np.float64)
    theirs = np.array([space.sample() for _ in range(2000)]).reshape(2000, -1).astype(np.float64)
    for first, second in zip(ours.T, theirs.T, strict=True):
        places = np.union1d(first, second)
        shares = [np.searchsorted(np.sort(values), places, side="right") / 2000 for values in (first, second)]
        assert np.abs(shares[0] - shares[1]).max() < 0.06


def test_what_a_run_stores_are_the_actions_that_its_envs_were_given(job: Job):
    common = ("--env", "Pendulum-v1", "--num-envs", "3", "--num-steps", "4", "--policy", "policies:too_strong")
    modes = ("check", "clip", "pass")
    results = job.series([Start((*common, "--actions", mode, "--out", f"{mode}.h5")) for mode in modes])
    assert [result.code for result in results] == [65, 0, 0]
    assert "the policy's action for env 1, component [0] must be in -2.0 to 2.0, got 7.5; clip it" in results[0].err
    stored = [datasets(job.folder / f"{mode}.h5")["actions"][:, :, 0] for mode in modes[1:]]
    assert stored[0].tolist() == [[2.0, 2.0, 2.0]] * 4
    assert stored[1].tolist() == [[float(np.nextafter(np.float32(2), np.float32(3))), 7.5, 7.5]] * 4
