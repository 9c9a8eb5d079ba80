"""Spaces as leaves, slots and blocks."""

import itertools
import json

import gymnasium
import numpy as np
import pytest
from envs import Counting, Image, Nested
from gymnasium import spaces

from mpi_rollout.errors import UsageError
from mpi_rollout.layout import (
    ALIGNMENT,
    Block,
    SlotLayout,
    bounds,
    describe,
    leaf_spaces,
    leaves,
    tree_of,
)
from mpi_rollout.partition import Partition

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
    with pytest.raises(UsageError, match=rf"^{name} spaces have no fixed shape .* by --env-factory$"):
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
    found = [[np.asarray(bound).tolist() for bound in bounds(space)] for space in kinds]
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


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_parts_of_a_slot_do_not_overlap(space: spaces.Space, rows: int):
    layout = SlotLayout(space, rows)
    buffer = np.zeros((1, layout.nbytes), np.uint8)
    views = [*layout.header(buffer), *layout.parts(buffer, rows)]
    starts = [view.ctypes.data - buffer.ctypes.data for view in views]
    pieces = sorted((start, start + view.nbytes) for start, view in zip(starts, views, strict=True))
    edges = [edge for piece in pieces for edge in piece]
    assert edges == sorted(edges) and edges[0] >= 0 and edges[-1] <= layout.nbytes


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_what_is_written_into_a_slot_is_read_at_the_root(space: spaces.Space):
    """Three ranks with up to 4 envs each; the root reads slots that it received one behind the other."""
    layout = SlotLayout(space, 4)
    slots = np.zeros((3, layout.nbytes), np.uint8)
    draws = np.random.default_rng(0)
    sent = []
    for slot, rows in zip(slots, (4, 4, 3), strict=True):
        columns = layout.one(slot, rows)
        for column in (*columns.results, *columns.observation_arrays):
            column[...] = draws.integers(0, 2 if column.dtype == bool else 100, column.shape)
        sent.append([column.copy() for column in (*columns.results, *columns.observation_arrays)])
    for rank, rows in enumerate((4, 4, 3)):
        for part, column in zip(layout.parts(slots, 4), sent[rank], strict=True):
            assert part.dtype == column.dtype
            assert part[rank, :rows].tobytes() == column.tobytes()


def test_the_headers_of_all_slots_are_seen_in_one_array_each():
    layout = SlotLayout(EVERY_DTYPE, 2)
    slots = np.zeros((3, layout.nbytes), np.uint8)
    for rank in range(3):
        step_s, fault = layout.header(slots[rank][None])
        step_s[0], fault[0] = rank / 4, 10 + rank
    step_s, faults = layout.header(slots)
    assert step_s.tolist() == [0, 0.25, 0.5] and faults.tolist() == [10, 11, 12]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_columns_of_a_slot_are_contiguous_and_begin_at_cache_lines(space: spaces.Space):
    layout = SlotLayout(space, 5)
    buffer = np.zeros(layout.nbytes, np.uint8)
    columns = layout.one(buffer, 5)
    for column in (*columns.results, *columns.observation_arrays):
        assert column.flags.c_contiguous
        assert (column.ctypes.data - buffer.ctypes.data) % ALIGNMENT == 0


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_slot_hangs_its_observations_in_the_shape_of_the_space(space: spaces.Space):
    layout = SlotLayout(space, 3)
    columns = layout.one(np.zeros(layout.nbytes, np.uint8), 3)
    for leaf, array in zip(leaves(space), columns.observation_arrays, strict=True):
        assert leaf.of(columns.observations) is array
        assert array.shape == (3, *leaf.shape) and array.dtype == leaf.dtype


def make_block(num_rows: int = 4, num_envs: int = 5) -> Block:
    return Block(Nested.observation_space, Nested.action_space, Partition(num_envs, 2), num_rows)


def test_a_block_names_its_arrays_as_the_file_does():
    block = make_block()
    expected = {f"observations/{leaf.path}" for leaf in leaves(Nested.observation_space)}
    expected |= {f"actions/{leaf.path}" for leaf in leaves(Nested.action_space)}
    assert set(block.named) == expected | {"rewards", "terminations", "truncations"}


def test_a_block_of_an_array_space_names_it_without_a_path():
    space = spaces.Discrete(2)
    block = Block(space, space, Partition(3, 1), 2)
    assert set(block.named) == {"observations", "actions", "rewards", "terminations", "truncations"}


def test_the_arrays_of_a_block_are_contiguous_and_share_no_memory():
    arrays = list(make_block().named.values())
    assert all(array.flags.c_contiguous and array.shape[:2] == (4, 5) for array in arrays)
    assert not any(np.shares_memory(*pair) for pair in itertools.combinations(arrays, 2))


def test_a_row_of_a_block_is_a_view_in_the_shape_of_the_space():
    block = make_block()
    block.named["observations/pair/_index_1"][2, 3] = 7
    row = block.observations_of(2)
    assert row["pair"][1][3].tolist() == [[7, 7, 7], [7, 7, 7]]
    assert all(leaf.of(row).flags.c_contiguous for leaf in leaves(Nested.observation_space))


def test_the_bytes_of_a_row_are_those_of_its_arrays():
    row_nbytes = Block.row_nbytes(Nested.observation_space, Nested.action_space, 5)
    assert row_nbytes == sum(array[0].nbytes for array in make_block().named.values())
