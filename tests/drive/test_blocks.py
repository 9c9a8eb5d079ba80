"""Blocks that are filled while lanes go on at their own pace."""

import pytest
from gymnasium import spaces

from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.drive.blocks import Blocks
from mpi_rollout.drive.sink import DiscardSink

SPACE = spaces.Discrete(2)


def begun(num_blocks: int = 3, num_rows: int = 2) -> Blocks:
    """Blocks of which at most so many can be open; the first is."""
    sink = DiscardSink([Block(Contents(SPACE, SPACE), 1, 1, num_rows) for _ in range(num_blocks)])
    blocks = Blocks(lambda num_open: sink.acquire() if num_open < num_blocks else None)
    assert blocks.extend()
    return blocks


def place(blocks: Blocks, step: int) -> tuple[int, int]:
    """The first step of the block that has a step, and its row there."""
    block, row = blocks.at(step)
    return block.start, row


def test_blocks_that_nobody_wants_come_back_in_turn():
    sink = DiscardSink([Block(Contents(SPACE, SPACE), 1, 1, 2) for _ in range(3)])
    assert sink.num_rows == 2
    given = [sink.acquire() for _ in range(6)]
    assert given[:3] == given[3:] and len(set(given)) == 3
    sink.submit(given[0], 2)


def test_steps_lie_in_rows_one_block_after_the_other():
    blocks = begun()
    blocks.extend()
    blocks.extend()
    assert [place(blocks, step) for step in range(6)] == [(0, 0), (0, 1), (2, 0), (2, 1), (4, 0), (4, 1)]
    assert blocks.stop == 6 and blocks.oldest.start == 0
    pieces = [(block.start, rows, steps) for block, rows, steps in blocks.pieces(1, 4)]
    assert pieces == [
        (0, slice(1, 2), slice(0, 1)),
        (2, slice(0, 2), slice(1, 3)),
        (4, slice(0, 1), slice(3, 4)),
    ]


def test_a_continued_run_begins_in_a_later_block():
    blocks = begun()
    blocks.close_oldest()
    blocks.stop = 40
    assert blocks.extend() and place(blocks, 41) == (40, 1) and blocks.stop == 42


def test_a_fast_lane_waits_when_all_blocks_are_being_filled():
    blocks = begun()
    for step in range(5):
        assert blocks.room(step, 1) == 1
    assert blocks.room(5, 1) == 0 and blocks.room(0, 1) == 1  # The slow one goes on.
    closed = blocks.close_oldest()
    assert blocks.oldest.start == 2 and blocks.room(5, 1) == 1
    assert blocks.at(6) == (closed, 0)


def test_a_slow_lane_goes_on_in_the_block_that_a_fast_one_has_opened():
    blocks = begun()
    assert [blocks.room(1, 1), blocks.room(1, 1)] == [1, 1] and blocks.stop == 4


@pytest.mark.parametrize(
    ("step", "num_steps", "room", "stop"),
    [
        (0, 3, 3, 5),
        (0, 4, 4, 5),
        (0, 5, 5, 10),
        (0, 8, 5, 10),
        (2, 2, 2, 5),
        (2, 3, 3, 10),
        (4, 1, 1, 10),
        (4, 7, 1, 10),
    ],
)
def test_a_fragment_ends_with_its_block_at_the_latest(step: int, num_steps: int, room: int, stop: int):
    """The observation after its last step is then in row 0 of the next one."""
    blocks = begun(2, num_rows=5)
    assert blocks.room(step, num_steps) == room and blocks.stop == stop


def test_a_fragment_ends_before_its_blocks_last_row_where_no_other_block_is_left():
    blocks = begun(2, num_rows=5)
    assert [blocks.room(0, 5), blocks.room(5, 5), blocks.room(9, 5)] == [5, 4, 0]
    blocks.close_oldest()
    assert blocks.room(9, 5) == 1 and place(blocks, 10) == (10, 0)
