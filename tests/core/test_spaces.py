"""Spaces as leaves."""

import json
from operator import itemgetter

import gymnasium
import numpy as np
import pytest
from envs import Counting, Image, Nested
from gymnasium import spaces

from mpi_rollout.core.spaces import (
    FEW,
    MOST_MASK_BITS,
    Bounds,
    bounds_of,
    describe,
    first_of,
    is_castable,
    leaf_spaces,
    leaves,
    map_tree,
    mask_sizes,
    tree_of,
    wrong_values_text,
)
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
def test_a_tree_taken_apart_into_leaves_and_hung_together_is_the_same(space: spaces.Space):
    space.seed(0)
    tree = space.sample()
    again = tree_of(space, [leaf.of(tree) for leaf in leaves(space)])
    assert space.contains(again)
    assert gymnasium.spaces.utils.flatten(space, again).tolist() == gymnasium.spaces.utils.flatten(space, tree).tolist()
    expected = [(part.dtype, part.shape) for part in leaf_spaces(space)]
    assert [(leaf.dtype, leaf.shape) for leaf in leaves(space)] == expected
    assert json.loads(json.dumps(describe(space))) == describe(space)


@pytest.mark.parametrize("name", NO_SHAPE)
def test_a_space_without_a_fixed_shape_is_refused_with_its_name_its_place_and_a_way_out(name: str):
    with pytest.raises(UsageError, match=rf"^{name} spaces have no fixed shape .* with a gymnasium wrapper around the"):
        leaves(NO_SHAPE[name])
    space = spaces.Dict({"good": spaces.Discrete(2), "outer": spaces.Tuple((spaces.Discrete(2), NO_SHAPE[name]))})
    with pytest.raises(UsageError, match=rf"^{name} spaces .* at 'outer/1'"):
        leaves(space)


def test_a_wrapper_that_makes_numbers_of_a_part_or_leaves_it_out_is_named():
    with pytest.raises(UsageError, match=r"at 't'; wrappers=gymnasium.wrappers:FlattenObservation makes one Box of "):
        leaves(spaces.Dict(t=spaces.Text(5)))
    with pytest.raises(UsageError, match="at 't'; leave it out, or make it a Box"):
        leaves(spaces.Dict(t=spaces.Sequence(spaces.Discrete(2))))
    mission = type("MissionSpace", (spaces.Text,), {"__module__": "minigrid.core.mission"})(5)
    with pytest.raises(UsageError, match=r"at .mission.; wrappers=minigrid.wrappers:ImgObs"):
        leaves(spaces.Dict(image=spaces.Discrete(2), mission=mission))


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


def test_bounds_that_are_all_the_same_are_described_by_one_number():
    image = describe(spaces.Box(0, 255, (40, 40, 3), np.uint8))
    assert (image["low"], image["high"]) == (0, 255)
    other = describe(spaces.Box(np.zeros(2, np.float32), np.array([1, 2], np.float32)))
    assert (other["low"], other["high"]) == (0.0, [1.0, 2.0])


@pytest.mark.parametrize("space", [Nested.observation_space, Nested.action_space], ids=str)
def test_a_function_takes_every_leaf_of_a_tree(space: spaces.Space):
    arrays = [np.arange(5 * int(np.prod(leaf.shape))).reshape(5, *leaf.shape) for leaf in leaves(space)]
    rows = map_tree(itemgetter(slice(1, 3)), tree_of(space, arrays))
    for leaf, array in zip(leaves(space), arrays, strict=True):
        assert leaf.of(rows).tolist() == array[1:3].tolist() and np.shares_memory(leaf.of(rows), array)


@pytest.mark.parametrize(
    ("got", "wanted", "is_allowed"),
    [
        ("f8", "f4", True),
        ("i8", "f4", True),
        ("?", "i1", True),
        ("i8", "u1", True),
        ("u8", "i8", True),
        ("f4", "i8", False),
        ("i8", "?", False),
        ("u1", "?", False),
        ("c8", "f4", False),
        ("O", "f4", False),
    ],
)
def test_a_dtype_may_become_its_own_kind_or_a_wider_one(got: str, wanted: str, is_allowed: bool):
    assert is_castable(np.dtype(got), np.dtype(wanted)) == is_allowed


def bounds(low: object, high: object, dtype: str = "f4") -> Bounds:
    return Bounds(np.dtype(dtype), np.array(low, dtype), np.array(high, dtype))


FLOAT_MAX = np.finfo(np.float32).max
BOUNDS = {
    "uniform": (bounds([-1.0, -1.0], [2.0, 2.0]), [[-1.0, 2.0]], [[-1.1, 0.0], [0.0, 2.1], [np.nan, 0], [0, np.inf]]),
    "by component": (bounds([-1.0, 5.0], [2.0, 9.0]), [[-1.0, 9.0], [2.0, 5.0]], [[0.0, 4.0], [3.0, 6.0], [0, np.nan]]),
    "unbounded": (bounds([-np.inf] * 2, [np.inf] * 2), [[-1e30, 1e30]], [[np.inf, 0], [0, -np.inf], [np.nan, 0]]),
    "from below": (bounds([0.0, -np.inf], [np.inf] * 2), [[0.0, -1e30]], [[-1.0, 0.0], [np.inf, 0.0], [0.0, -np.inf]]),
    "whole numbers": (bounds([0, 0], [3, 3], "i8"), [[0, 3]], [[-1, 0], [0, 4]]),
    "largest": (bounds([-FLOAT_MAX] * 2, [FLOAT_MAX] * 2), [[3e38, -3e38]], [[np.inf, 0], [0, -np.inf]]),
    "bytes": (bounds([1, 1], [254, 254], "u1"), [[1, 254]], [[0, 5], [5, 255]]),
    "more than a float": (bounds([-1, -1], [2**62] * 2, "i8"), [[-1, 2**62]], [[0, 2**62 + 1]]),
    "by component, whole": (bounds([0, 2], [3, 8], "i8"), [[0, 8], [3, 2]], [[-1, 2], [0, 1], [4, 2], [0, 9]]),
}


@pytest.mark.parametrize("num_rows", [1, 2, FEW], ids=lambda rows: f"{rows}_rows")
@pytest.mark.parametrize("kind", BOUNDS)
def test_values_at_their_bounds_are_right_and_any_other_is_seen_in_small_and_in_large_arrays(kind: str, num_rows: int):
    checked, right, wrong = BOUNDS[kind]
    dtype = checked.low.dtype
    whole = np.resize(np.array(right, dtype), (num_rows, 2))
    assert checked.hold(whole) and not any(array.any() for array in checked.wrong(whole).values())
    for row in wrong:
        values = whole.copy()
        values[-1] = row
        assert not checked.hold(values), row
        seen = np.logical_or.reduce([*checked.wrong(values).values()])
        assert not seen[:-1].any() and seen[-1].any()


def test_no_value_is_wrong_in_two_ways():
    wrong = bounds([0.0], [1.0]).wrong(np.array([[0.5], [np.nan], [np.inf], [-1.0], [2.0]], np.float32))
    assert wrong["not_finite"].ravel().tolist() == [False, True, True, False, False]
    assert wrong["out_of_bounds"].ravel().tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("checked", "kinds"),
    [
        (bounds(0, 255, "u1"), ()),
        (bounds(0, 254, "u1"), ("out_of_bounds",)),
        (bounds(1, 255, "u1"), ("out_of_bounds",)),
        (bounds(False, True, "?"), ()),
        (bounds(-np.inf, np.inf), ("not_finite",)),
        (bounds(0, np.inf), ("out_of_bounds", "not_finite")),
        (bounds(-np.inf, 0), ("out_of_bounds", "not_finite")),
    ],
)
def test_only_what_a_dtype_can_hold_beyond_its_bounds_is_looked_for(checked: Bounds, kinds: tuple):
    assert checked.kinds == kinds


def test_neither_rounding_nor_no_values_are_wrong():
    assert bounds([0.0], [1.0]).hold(np.zeros((0, 1), np.float32))
    assert bounds(2, 6, "i8").hold(np.array([[2, 6]])) and not bounds(2, 6, "i8").hold(np.array([[2, 7]]))
    above = np.nextafter(np.float32(3), np.float32(4))
    assert bounds([0.0], [3.0]).hold(np.array([[above]])) and not bounds([0.0], [3.0]).hold(np.array([[above + 1e-5]]))


def test_a_wrong_value_is_told_with_its_place_and_its_bounds():
    one, several = bounds(0, 1), bounds([0, 5], [1, 9])
    assert one.words("out_of_bounds", 2.0, ()) == "2.0, outside of its bounds 0.0 to 1.0"
    assert one.words("out_of_bounds", 2.0, (3,)) == "2.0 at [3], outside of its bounds 0.0 to 1.0"
    assert several.words("out_of_bounds", 2.0, (1,)) == "2.0 at [1], outside of its bounds 5.0 to 9.0"
    assert several.words("not_finite", np.nan, (0,)) == "nan at [0], which is not finite"


def test_the_first_wrong_value_is_found_in_row_order():
    wrong = np.zeros((3, 4), bool)
    wrong[1, 2] = wrong[2, 0] = True
    assert first_of(wrong) == [1, 2]


def test_counts_of_wrong_values_are_told_in_one_text():
    first = {"dataset": "observations/x", "count": 1200, "kind": "out_of_bounds", "env_index": 3, "step": 4000}
    second = {"dataset": "rewards", "count": 1, "kind": "out_of_bounds", "env_index": 0, "step": 0}
    third = {"dataset": "rewards", "count": 2, "kind": "not_finite", "env_index": 0, "step": 0}
    assert wrong_values_text([first, second, third]) == (
        "1,200 observations 'x' outside of their space (first: env 3, step 4,000), "
        "1 reward outside of its space (first: env 0, step 0), 2 rewards not finite (first: env 0, step 0)"
    )


def test_masks_have_a_bit_for_each_action_of_a_space_of_few_choices():
    assert mask_sizes(spaces.Discrete(9)) == [9] and mask_sizes(spaces.MultiDiscrete([[2, 5], [3, 4]])) == [2, 5, 3, 4]
    assert mask_sizes(spaces.Discrete(MOST_MASK_BITS)) and not mask_sizes(spaces.Discrete(MOST_MASK_BITS + 1))
    box = spaces.Box(0, 1, (2,), np.float32)
    assert mask_sizes(box) == mask_sizes(spaces.Dict(a=spaces.Discrete(2))) == []
