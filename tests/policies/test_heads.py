"""From a network's outputs to actions."""

import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.errors import ActionError, UsageError
from mpi_rollout.policies.networks import Head

ENVS = np.array([4, 5])
NO_DRAWS = np.zeros((2, 0))
BOX = spaces.Box(-1, 1, (3,))


def outputs(*arrays: object) -> list[np.ndarray]:
    return [np.array(array, np.float32) for array in arrays]


@pytest.mark.parametrize(
    ("space", "logits", "actions"),
    [
        (spaces.Discrete(3), [[0, 2, 1], [3, 2, 1]], [1, 0]),
        (spaces.Discrete(3, start=5), [[0, 2, 1], [3, 2, 1]], [6, 5]),
        (spaces.MultiDiscrete([2, 3]), [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0]], [[1, 2], [0, 1]]),
        (spaces.MultiDiscrete([2, 2], start=[7, 8]), [[0, 1, 1, 0], [1, 0, 0, 1]], [[8, 8], [7, 9]]),
        (spaces.MultiBinary(3), [[-1, 0, 1], [2, -2, 0.1]], [[0, 0, 1], [1, 0, 1]]),
        (spaces.MultiBinary((2, 2)), [[-1, 0, 1, 1], [2, -2, 0.1, 0]], [[[0, 0], [1, 1]], [[1, 0], [1, 0]]]),
    ],
    ids=str,
)
def test_logits_become_the_likeliest_actions(space: spaces.Space, logits: list, actions: list):
    got = Head(space, "deterministic")(outputs(logits), ENVS, NO_DRAWS)
    assert got.tolist() == actions and got.dtype == space.dtype
    assert all(space.contains(action) for action in got)


def test_logits_are_drawn_from():
    head = Head(spaces.Discrete(3, start=5), "sample")
    logits = outputs(np.log([[1, 2, 1], [1, 2, 1]]))
    assert head.num_uniforms == 1
    assert head(logits, ENVS, np.array([[0.1], [0.9]])).tolist() == [5, 7]
    head = Head(spaces.MultiBinary(2), "sample")
    assert head(outputs(np.zeros((2, 2))), ENVS, np.array([[0.4, 0.6], [0.6, 0.4]])).tolist() == [[1, 0], [0, 1]]
    head = Head(spaces.MultiDiscrete([2, 2]), "sample")
    drawn = head(outputs(np.zeros((2, 4))), ENVS, np.array([[0.4, 0.6], [0.6, 0.4]]))
    assert drawn.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(2)], ids=str)
def test_whole_numbers_are_actions(space: spaces.Space):
    actions = np.ones((2, *space.shape), np.int64)
    assert np.array_equal(Head(space, "deterministic")([actions], ENVS, NO_DRAWS), actions)
    with pytest.raises(ActionError, match="no logits to draw from; use policy_mode=deterministic"):
        Head(space, "sample")([actions], ENVS, np.zeros((2, 2)))


def test_actions_of_a_box_stay_as_they_are():
    (actions,) = outputs(np.full((2, 3), 4.0))
    assert Head(BOX, "deterministic")([actions], ENVS, NO_DRAWS) is not None
    assert np.array_equal(Head(BOX, "deterministic")([actions], ENVS, NO_DRAWS), actions)
    assert Head(BOX, "deterministic")([actions.reshape(2, 1, 3)], ENVS, NO_DRAWS).shape == (2, 3)


@pytest.mark.parametrize("shape", [(2, 3), (3,), (1, 3)], ids=str)
def test_a_mean_and_a_std_are_drawn_from_within_the_bounds(shape: tuple[int, ...]):
    head = Head(BOX, "sample")
    uniforms = np.random.default_rng(0).random((2, head.num_uniforms))
    assert head.num_uniforms == 4
    near = head(outputs(np.full((2, 3), 0.5), np.full(shape, -20.0)), ENVS, uniforms)
    assert np.allclose(near, 0.5) and near.dtype == np.float32
    far = head(outputs(np.full((2, 3), 0.5), np.full(shape, 20.0)), ENVS, uniforms)
    assert set(np.unique(far)) == {-1, 1}


@pytest.mark.parametrize(
    ("space", "arrays", "message"),
    [
        (spaces.Discrete(3), [np.zeros((2, 4))], r"logits of shape \(2, 3\) for Discrete\(3\), gives float32 \(2, 4\)"),
        (spaces.Discrete(3), [np.zeros((3, 3))], r"logits of shape \(2, 3\)"),
        (BOX, [np.zeros((2, 4))], r"actions of shape \(2, 3\)"),
        (BOX, [np.zeros(())], r"actions of shape \(2, 3\)"),
    ],
    ids=str,
)
def test_outputs_of_another_shape_are_refused(space: spaces.Space, arrays: list, message: str):
    with pytest.raises(ActionError, match=message):
        Head(space, "deterministic")(outputs(*arrays), ENVS, NO_DRAWS)


def test_a_box_needs_two_outputs_to_draw_from():
    with pytest.raises(ActionError, match="two float arrays to draw from"):
        Head(BOX, "sample")(outputs(np.zeros((2, 3))), ENVS, np.zeros((2, 4)))


@pytest.mark.parametrize("mode", ["deterministic", "sample"])
def test_logits_that_are_not_numbers_are_refused_with_the_env(mode: str):
    with pytest.raises(ActionError, match="logits for env 5 are NaN"):
        Head(spaces.Discrete(2), mode)(outputs([[0, 1], [np.nan, 1]]), ENVS, np.zeros((2, 1)))


def test_spaces_that_no_network_acts_in_are_refused():
    with pytest.raises(UsageError, match="the envs want Dict actions"):
        Head(spaces.Dict(a=BOX), "deterministic")
    with pytest.raises(UsageError, match="cannot draw"):
        Head(spaces.Box(0, 9, (2,), np.uint8), "sample")
