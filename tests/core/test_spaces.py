"""Spaces as leaves."""

import json

import gymnasium
import numpy as np
import pytest
from envs import Counting, Image, Nested
from gymnasium import spaces

from mpi_rollout.core.spaces import bounds_of, describe, leaf_spaces, leaves, tree_of
from mpi_rollout.errors import UsageError

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
EVERY_DTYPE = spaces.Dict({dtype: spaces.Box(0, 1, (3,), np.dtype(dtype)) for dtype in DTYPES})
SPACES = [Counting.observation_space, Nested.observation_space, Image.observation_space, EVERY_DTYPE]
NO_SHAPE = {
    "Text": spaces.Text(10),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Graph": spaces.Graph(spaces.Discrete(2), None),
    "OneOf": spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
}


def test_leaves_of_a_nested_space_are_named_as_in_minari():
    found = [(leaf.path, leaf.dtype.name, leaf.shape) for leaf in leaves(Nested.observation_space)]
    assert found == [
        ("deep/bits", "int8", (3,)),
        ("deep/many", "int64", (2,)),
        ("flag", "bool", (2,)),
        ("half", "float16", ()),
        ("id", "int64", (4,)),
        ("pair/_index_0", "int64", ()),
        ("pair/_index_1", "float32", (2, 3)),
    ]


def test_the_only_leaf_of_an_array_space_has_no_path():
    (leaf,) = leaves(Image.observation_space)
    assert (leaf.path, leaf.dtype, leaf.shape, leaf.nbytes) == ("", np.uint8, (40, 48, 3), 40 * 48 * 3)


@pytest.mark.parametrize("space", [*SPACES, Nested.action_space], ids=str)
def test_leaf_spaces_come_in_the_order_of_the_leaves(space: spaces.Space):
    expected = [(each.dtype, each.shape) for each in leaf_spaces(space)]
    assert [(leaf.dtype, leaf.shape) for leaf in leaves(space)] == expected


@pytest.mark.parametrize("space", [*SPACES, Nested.action_space], ids=str)
def test_a_tree_taken_apart_into_leaves_and_hung_together_is_the_same(space: spaces.Space):
    space.seed(0)
    tree = space.sample()
    again = tree_of(space, [leaf.of(tree) for leaf in leaves(space)])
    assert space.contains(again)
    assert gymnasium.spaces.utils.flatten(space, again).tolist() == gymnasium.spaces.utils.flatten(space, tree).tolist()


@pytest.mark.parametrize("name", NO_SHAPE)
def test_a_space_without_a_fixed_shape_is_refused_with_its_name_and_a_way_out(name: str):
    with pytest.raises(
        UsageError, match=rf"^{name} spaces have no fixed shape .* with a gymnasium wrapper around the env$"
    ):
        leaves(NO_SHAPE[name])


@pytest.mark.parametrize("name", NO_SHAPE)
def test_a_part_without_a_fixed_shape_is_refused_with_its_place(name: str):
    space = spaces.Dict({"good": spaces.Discrete(2), "outer": spaces.Tuple((spaces.Discrete(2), NO_SHAPE[name]))})
    with pytest.raises(UsageError, match=rf"^{name} spaces .* at 'outer/1'"):
        leaves(space)


def test_bounds_are_inclusive_for_every_kind_of_leaf():
    kinds = (
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 5], start=[1, -4]),
        spaces.MultiBinary(2),
        spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
    )
    found = [[np.asarray(bound).tolist() for bound in bounds_of(space)] for space in kinds]
    assert found == [[-1, 1], [[1, -4], [2, 0]], [[0, 0], [1, 1]], [[-np.inf, 0], [1, np.inf]]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (spaces.Discrete(2), spaces.Discrete(3)),
        (spaces.Discrete(2), spaces.Discrete(2, start=1)),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,))),
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2,), np.float64)),
        (spaces.Box(0, 1, (2,)), spaces.Box(np.zeros(2, np.float32), np.array([1, 2], np.float32))),
        (spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)),
        (spaces.Dict(a=spaces.Discrete(2)), spaces.Dict(b=spaces.Discrete(2))),
        (spaces.Tuple([spaces.Discrete(2)]), spaces.Tuple([spaces.Discrete(2)] * 2)),
    ],
    ids=str,
)
def test_descriptions_tell_different_spaces_apart(first: spaces.Space, second: spaces.Space):
    assert json.dumps(describe(first)) != json.dumps(describe(second))


@pytest.mark.parametrize("space", [*SPACES, Nested.action_space], ids=str)
def test_a_description_is_json_and_the_same_for_the_same_space(space: spaces.Space):
    assert json.loads(json.dumps(describe(space))) == describe(space)
