"""Slots and blocks."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import drawn_spaces
import numpy as np
import pytest
from envs import Counting, Image, Nested
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_rollout.core.columns import RESULTS, noun
from mpi_rollout.core.layout import ALIGNMENT, Block, Columns, Contents, SlotLayout, SlotUnpacker
from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, leaves

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
EVERY_DTYPE = spaces.Dict({dtype: spaces.Box(0, 1, (3,), np.dtype(dtype)) for dtype in DTYPES})
SPACES = [Counting.observation_space, Nested.observation_space, Image.observation_space, EVERY_DTYPE]
NESTED = Contents(Nested.observation_space, Nested.action_space)
INFOS = (Leaf(("lives",), np.dtype(np.int64), ()), Leaf(("deep", "position"), np.dtype(np.float32), (3,)))


def all_of(columns: Columns) -> list[np.ndarray]:
    """Every array of some columns."""
    infos = [array for pair in columns.info_arrays for array in pair]
    return [
        *columns.results,
        *columns.observation_arrays,
        *columns.action_arrays,
        *columns.final_observation_arrays,
        *infos,
    ]


def draw_into(columns: list[np.ndarray], draws: np.random.Generator) -> None:
    for column in columns:
        column[...] = draws.integers(0, 2 if column.dtype == bool else 100, column.shape)


def plain_layout(space: spaces.Space, capacity: int) -> SlotLayout:
    """A slot with what each one has."""
    return SlotLayout(Contents(space, Nested.action_space), capacity)


def full_layout(space: spaces.Space, capacity: int) -> SlotLayout:
    """A slot with all that it can have."""
    return SlotLayout(Contents(space, Nested.action_space, True, INFOS, has_actions=True), capacity)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("make", [plain_layout, full_layout], ids=["plain", "full"])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_the_columns_of_a_slot_are_contiguous_in_cache_lines_of_their_own(
    space: spaces.Space, make: Callable[..., SlotLayout], rows: int
):
    layout = make(space, rows)
    buffer = np.zeros(layout.nbytes, np.uint8)
    columns = layout.columns(buffer, rows)
    arrays, header = all_of(columns), layout.header(buffer)
    assert all(array.flags.c_contiguous for array in arrays)
    starts = [view.ctypes.data - buffer.ctypes.data for view in [*header, *arrays]]
    assert not any(start % ALIGNMENT for start in starts[len(header) :])
    ends = [start + view.nbytes for start, view in zip(starts, [*header, *arrays], strict=True)]
    assert all(before <= start for before, start in zip([0, *ends], [*starts, layout.nbytes], strict=True))
    for leaf, array in zip(leaves(space), columns.observation_arrays, strict=True):
        assert leaf.of(columns.observations) is array
        assert array.shape == (rows, *leaf.shape) and array.dtype == leaf.dtype


def test_the_headers_of_all_slots_are_seen_in_one_array_each():
    layout = plain_layout(EVERY_DTYPE, 2)
    slots = np.zeros((3, layout.nbytes), np.uint8)
    for rank in range(3):
        step_s, mark, has_infos, _, _ = layout.header(slots[rank][None])
        step_s[0], mark[0], has_infos[0] = rank / 4, 10 + rank, 2**40 + rank
    step_s, marks, has_infos, _, _ = layout.header(slots)
    assert step_s.tolist() == [0, 0.25, 0.5] and marks.tolist() == [10, 11, 12]
    assert has_infos.tolist() == [2**40, 2**40 + 1, 2**40 + 2]


def test_a_slot_that_nobody_reads_is_a_cache_line():
    contents = Contents(EVERY_DTYPE, spaces.Discrete(2), counts_only=True)
    layout = SlotLayout(contents, 1000)
    assert layout.nbytes == layout.head_nbytes == ALIGNMENT
    columns = layout.columns(np.zeros((2, layout.nbytes), np.uint8), 1000)
    assert not all_of(columns) or {column.size for column in all_of(columns)} == {0}
    block = Block(contents, 1000, 2, 5)
    assert not block.named and not block.results
    partition = Partition(1000, 2)
    slots = np.zeros((2, 1, layout.nbytes), np.uint8)
    layout.header(slots[:, 0])[-1][:] = 7, 8
    unpacker = SlotUnpacker(block, layout, partition, slots, slice(0, 2))
    unpacker.lay_observations(4)
    unpacker.lay_results(3)
    assert block.num_ended.tolist() == [[0, 0]] * 3 + [[7, 8], [0, 0]]


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)], ids=str)
@pytest.mark.parametrize("make", [plain_layout, full_layout], ids=["plain", "full"])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_columns_of_many_slots_have_the_axes_of_the_slots_first(
    space: spaces.Space, make: Callable[..., SlotLayout], lead: tuple[int, ...]
):
    """The root reads all slots at once, be there as many envs in one as there is room for or fewer."""
    layout = make(space, 3)
    rows = np.zeros((*lead, layout.nbytes), np.uint8)
    columns = layout.columns(rows, 2)
    arrays = all_of(columns)
    draws = np.random.default_rng(0)
    for column in arrays:
        assert column.shape[: len(lead) + 1] == (*lead, 2)
    draw_into(arrays, draws)
    for number, index in enumerate(np.ndindex(*lead)):
        num_envs = 1 + number % 2
        one = layout.columns(rows[index], num_envs)
        for column, whole in zip(all_of(one), arrays, strict=True):
            assert column.dtype == whole.dtype and column.tobytes() == whole[index][:num_envs].tobytes()
    assert columns.observation_arrays[0].ctypes.data - rows.ctypes.data == layout.head_nbytes


def test_actions_final_observations_and_infos_come_only_where_they_are_wanted():
    space = Counting.observation_space
    plain, full = (make(space, 2) for make in (plain_layout, full_layout))
    columns = full.columns(np.zeros(full.nbytes, np.uint8), 2)
    assert [array.shape for array in columns.final_observation_arrays] == [(2, 4)]
    assert [array.shape[1:] for array in columns.action_arrays] == [leaf.shape for leaf in leaves(Nested.action_space)]
    assert [(values.shape, mask.shape) for values, mask in columns.info_arrays] == [((2,), (2,)), ((2, 3), (2,))]
    columns = plain.columns(np.zeros(plain.nbytes, np.uint8), 2)
    assert columns.info_arrays == columns.action_arrays == () and plain.nbytes < full.nbytes


def make_block(num_rows: int = 4, num_envs: int = 5) -> Block:
    return Block(NESTED, num_envs, 2, num_rows)


def test_the_arrays_of_a_block_are_contiguous_and_have_the_names_of_the_file():
    block = make_block()
    expected = {f"observations/{leaf.path}" for leaf in leaves(Nested.observation_space)}
    expected |= {f"actions/{leaf.path}" for leaf in leaves(Nested.action_space)}
    assert set(block.named) == expected | {"rewards", "terminations", "truncations"}
    arrays = list(block.named.values())
    assert all(array.flags.c_contiguous and array.shape[:2] == (4, 5) for array in arrays)
    assert not any(np.shares_memory(*pair) for pair in itertools.combinations(arrays, 2))
    space = spaces.Discrete(2)
    single = Block(Contents(space, space), 3, 1, 2)
    assert set(single.named) == {"observations", "actions", "rewards", "terminations", "truncations"}


def test_the_bytes_of_a_row_are_those_of_its_arrays():
    row_nbytes = NESTED.row_nbytes(5)
    assert row_nbytes == sum(array[0].nbytes for array in make_block().named.values())


def test_a_leaf_is_called_in_messages_by_what_it_is():
    assert [noun(leaf) for leaf in RESULTS] == ["reward", "terminated", "truncated"]
    same_as_a_result = Leaf(RESULTS[0].keys, RESULTS[0].dtype, RESULTS[0].shape)
    assert noun(same_as_a_result) == "observation 'rewards'" and noun(leaves(spaces.Discrete(2))[0]) == "observation"


class Slots:
    """Those of five envs on three ranks, of `room` rows: the last rank's second env is nobody's."""

    def __init__(self, root_envs: int | None, room: int, has_actions: bool = False):
        self.partition = Partition(5, 3 + (root_envs == 0), root_envs)
        layout = SlotLayout(replace(NESTED, has_actions=has_actions), self.partition.capacity)
        self.num_ranks = self.partition.num_ranks
        self.slots = np.zeros((self.num_ranks, room, layout.nbytes), np.uint8)
        self.columns = layout.columns(self.slots, self.partition.capacity)
        self.step_s = layout.header(self.slots.reshape(-1, layout.nbytes))[0].reshape(self.num_ranks, room)
        self.block = Block(NESTED, 5, self.num_ranks, 12)
        self.unpacker = SlotUnpacker(self.block, layout, self.partition, self.slots, slice(0, self.num_ranks))
        self.draws = np.random.default_rng(0)

    def fill(self, step: int) -> list[list[np.ndarray]]:
        """Have ranks send random rows from a step on; return for each row all columns in env order."""
        columns = all_of(self.columns)
        draw_into(columns, self.draws)
        self.step_s[:, 0] = step + np.arange(self.num_ranks) / 8
        rank, place = self.partition.places
        return [[column[rank, row, place].copy() for column in columns] for row in range(self.slots.shape[1])]


@pytest.mark.parametrize("root_envs", [None, 0])
def test_the_slots_of_all_ranks_are_laid_into_rows_in_env_order(root_envs: int | None):
    slots = Slots(root_envs, 1)
    block, unpacker = slots.block, slots.unpacker
    sent = []
    for row in range(3):
        sent += slots.fill(row)
        unpacker.lay_results(row)
        unpacker.lay_observations(row + 1)
    assert not block.rewards[3:].any() and not block.step_s[3:].any()
    for row in range(3):
        assert block.step_s[row].tolist() == (row + np.arange(slots.num_ranks) / 8).tolist()
        laid = [array[row] for array in block.results] + [array[row + 1] for array in block.observation_arrays]
        for array, expected in zip(laid, sent[row], strict=True):
            assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("has_actions", [False, True])
@pytest.mark.parametrize("root_envs", [None, 0])
def test_fragments_of_any_length_are_laid_row_by_row(root_envs: int | None, has_actions: bool):
    """Of a slot with room for more, the first rows are laid, and actions beside the results if it has some."""
    slots = Slots(root_envs, 4, has_actions)
    block, unpacker, row = slots.block, slots.unpacker, 0
    sent = []
    for num_rows in (3, 1, 4, 2):
        sent += slots.fill(row)[:num_rows]
        unpacker.lay_observations(row + 1, 0, num_rows)
        unpacker.lay_results(row, num_rows)
        row += num_rows
    assert not block.rewards[row:].any() and not block.observation_arrays[0][row + 1 :].any()
    assert has_actions == block.action_arrays[0].any()
    for row, expected in enumerate(sent):
        laid = [array[row] for array in block.results] + [array[row + 1] for array in block.observation_arrays]
        laid += [array[row] for array in block.action_arrays] if has_actions else []
        for array, column in zip(laid, expected, strict=True):
            assert array.tobytes() == column.tobytes()


def test_rows_after_a_blocks_end_are_laid_into_the_next_one():
    slots = Slots(False, 4)
    sent = slots.fill(0)
    slots.unpacker.lay_observations(10, 1, 3)
    slots.unpacker.lay_observations(0, 3, 4)
    for row, expected in ((10, sent[1]), (11, sent[2]), (0, sent[3])):
        for array, column in zip(slots.block.observation_arrays, expected[len(RESULTS) :], strict=True):
            assert array[row].tobytes() == column.tobytes()


def test_the_seconds_of_a_fragment_are_in_its_first_row():
    slots = Slots(None, 3)
    for row in (0, 3):
        slots.fill(row + 1)
        slots.unpacker.lay_results(row, 3)
    expected = np.zeros((6, 3))
    expected[[0, 3]] = np.array([[1], [4]]) + np.arange(3) / 8
    assert slots.block.step_s[:6].tolist() == expected.tolist()


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    num_ranks = draw(st.integers(1, 5))
    root_envs = draw(st.none() | st.integers(0, 3)) if num_ranks > 1 else None
    num_envs = num_ranks + (root_envs or 0) + draw(st.integers(0, 7))
    return Partition(num_envs, num_ranks, root_envs)


@settings(max_examples=40)
@given(drawn_spaces.SPACES, drawn_spaces.SPACES, partitions(), st.booleans(), st.booleans(), st.data())
def test_fragments_of_any_spaces_and_ranks_are_laid_as_they_were_sent(
    space: spaces.Space,
    action_space: spaces.Space,
    partition: Partition,
    has_actions: bool,
    keeps_infos: bool,
    data: st.DataObject,
):
    contents = Contents(space, action_space, has_actions=has_actions, infos=INFOS, keeps_infos=keeps_infos)
    room = data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, room), min_size=1, max_size=4))
    layout, draws = SlotLayout(contents, partition.capacity), np.random.default_rng(sum(lengths))
    slots = np.zeros((partition.num_ranks, room, layout.nbytes), np.uint8)
    columns = layout.columns(slots, partition.capacity)
    block = Block(contents, partition.num_envs, partition.num_ranks, sum(lengths) + 1)
    unpacker = SlotUnpacker(block, layout, partition, slots, slice(0, partition.num_ranks))
    sources = [*columns.observation_arrays, *(array for pair in columns.info_arrays for array in pair)]
    pairs = [(target, source, 1) for target, source in zip(block.state_arrays, sources, strict=False)]
    pairs += [(target, source, 0) for target, source in zip(block.outcomes, columns.outcomes, strict=True)]
    pairs += [(target, source, 0) for target, source in zip(block.action_arrays, columns.action_arrays, strict=False)]
    start, (rank, place) = 0, partition.places
    for num_rows in lengths:
        draw_into([source for _, source, _ in pairs], draws)
        layout.header(slots)[4][...] = draws.integers(0, 9, slots.shape[:2])
        unpacker.lay_observations(start + 1, 0, num_rows)
        unpacker.lay_results(start, num_rows)
        for row in range(num_rows):
            assert block.num_ended[start + row].tolist() == layout.header(slots)[4][:, row].tolist()
            for target, source, behind in pairs:
                assert target[start + row + behind].tobytes() == source[rank, row, place].tobytes()
        start += num_rows
    assert not any(target[0].any() for target, _, behind in pairs if behind)
