"""Blocks that are filled while lanes go on at their own pace."""

import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.core.clock import Clock
from mpi_rollout.core.layout import Block, SlotLayout, SlotUnpacker
from mpi_rollout.core.partition import Partition
from mpi_rollout.drive.blocks import Discard, LaneProgress, OpenBlocks

SPACE = spaces.Discrete(2)


class Lane:
    """A lane of one env, whose slots hold `room` steps."""

    def __init__(self, room: int = 8):
        self.layout = SlotLayout(SPACE, 1)
        self.slots = np.zeros((1, room, self.layout.nbytes), np.uint8)
        self.columns = self.layout.columns(self.slots, 1)

    def unpacker(self, block: Block) -> SlotUnpacker:
        return SlotUnpacker(block, self.layout, Partition(1, 1), self.slots, slice(0, 1))


class Driver:
    """What blocks ask of a driver."""

    def __init__(self):
        self.clock, self.num_prepared, self.lane = Clock(), 0, Lane()

    def unpackers(self, block: Block) -> dict:
        self.num_prepared += 1
        return {self.lane: self.lane.unpacker(block)}


@pytest.fixture
def blocks() -> list[Block]:
    return [Block(SPACE, SPACE, 1, 1, 2) for _ in range(3)]


@pytest.fixture
def opened(blocks: list[Block]) -> OpenBlocks:
    return OpenBlocks(Driver(), Discard(blocks), 3)


def begun(opened: OpenBlocks, start: int = 0) -> LaneProgress:
    return LaneProgress(opened._driver.lane, opened.open(start), start)


def take(opened: OpenBlocks, progress: LaneProgress, num_steps: int = 1) -> int:
    """Take steps, at most so many; return how many."""
    assert opened.has_room(progress)
    num_rows = opened.find_room(progress, num_steps)
    progress.take_in(num_rows)
    return num_rows


def place(progress: LaneProgress) -> tuple[int, int, int]:
    """The step of a lane, the first step of its block, and its row there."""
    return progress.step, progress.open_block.start, progress.row


def test_blocks_that_nobody_wants_come_back_in_turn(blocks: list[Block]):
    sink = Discard(blocks)
    assert sink.num_rows == 2
    given = [sink.acquire() for _ in range(6)]
    assert given[:3] == given[3:] and {id(block) for block in given} == {id(block) for block in blocks}
    sink.submit(given[0], 2)


def test_a_lane_goes_through_the_rows_of_a_block_and_on_to_the_next(opened: OpenBlocks):
    progress = begun(opened, 4)
    places = []
    for _ in range(4):
        assert take(opened, progress) == 1
        places.append(place(progress))
    assert places == [(5, 4, 1), (6, 6, 0), (7, 6, 1), (8, 8, 0)]


def test_a_fast_lane_waits_when_all_blocks_are_being_filled(opened: OpenBlocks):
    fast = begun(opened)
    slow = LaneProgress(fast.lane, fast.open_block)
    for _ in range(5):
        take(opened, fast)
    assert not opened.has_room(fast) and opened.has_room(slow)
    assert opened.oldest.start == 0 and opened.oldest.stop == 2
    closed = opened.close_oldest()
    assert closed is slow.open_block.block and opened.oldest.start == 2
    assert opened.has_room(fast) and opened.find_room(fast, 1) == 1
    assert fast.next_block.start == 6 and fast.next_block.block is closed


def test_a_slow_lane_goes_on_in_the_block_that_a_fast_one_has_opened(opened: OpenBlocks):
    fast = begun(opened)
    slow = LaneProgress(fast.lane, fast.open_block, 1, 1)
    fast.row = 1
    for progress in (fast, slow):
        take(opened, progress)
    assert slow.open_block is fast.open_block and slow.row == fast.row == 0


@pytest.mark.parametrize(
    ("row", "num_steps", "num_rows", "end"),
    [
        (0, 3, 3, (0, 3)),
        (0, 4, 4, (0, 4)),
        (0, 5, 5, (5, 0)),
        (0, 8, 5, (5, 0)),
        (2, 2, 2, (0, 4)),
        (2, 3, 3, (5, 0)),
        (4, 1, 1, (5, 0)),
        (4, 7, 1, (5, 0)),
    ],
)
def test_a_fragment_ends_with_its_block_at_the_latest(row: int, num_steps: int, num_rows: int, end: tuple[int, int]):
    """Its last observations are then in row 0 of the next one."""
    opened = OpenBlocks(Driver(), Discard([Block(SPACE, SPACE, 1, 1, 5) for _ in range(2)]), 2)
    progress = begun(opened)
    progress.step = progress.row = row
    assert take(opened, progress, num_steps) == progress.num_rows == num_rows
    assert place(progress) == (row + num_rows, *end)


def test_a_fragment_ends_before_its_blocks_last_row_where_no_other_block_is_left():
    opened = OpenBlocks(Driver(), Discard([Block(SPACE, SPACE, 1, 1, 5) for _ in range(2)]), 2)
    fast = begun(opened)
    LaneProgress(fast.lane, fast.open_block)  # A slow one, which still fills the first block.
    taken = [take(opened, fast, 5), take(opened, fast, 5)]
    assert taken == [5, 4] and place(fast) == (9, 5, 4) and not opened.has_room(fast)
    opened.close_oldest()
    assert take(opened, fast, 5) == 1 and place(fast) == (10, 10, 0)


def fragments(opened: OpenBlocks, lengths: list[int]) -> tuple[LaneProgress, list[Block]]:
    """Take fragments, in each of which step t gives observation t + 1 and the reward t; return the blocks."""
    progress, lane = begun(opened), opened._driver.lane
    blocks = [progress.open_block.block]
    for length in lengths:
        assert opened.has_room(progress)
        num_rows = opened.find_room(progress, length)
        steps = progress.step + np.arange(num_rows)
        lane.columns.observation_arrays[0][0, :num_rows, 0] = steps + 1
        lane.columns.rewards[0, :num_rows, 0] = steps
        lane.slots[0, num_rows:] = 255  # Of an earlier fragment.
        before = progress.open_block
        progress.take_in(num_rows)
        if progress.open_block is not before:
            before.unpackers[lane].unpack(0, before.block.num_rows)
            blocks.append(progress.open_block.block)
    return progress, blocks


def test_the_rows_of_fragments_are_laid_one_after_the_other_into_blocks():
    blocks = [Block(spaces.Discrete(100), SPACE, 1, 1, 5) for _ in range(4)]
    progress, filled = fragments(OpenBlocks(Driver(), Discard(blocks), 4), [1, 3, 4, 2, 7, 1])
    assert place(progress) == (11, 10, 1)  # 4 and 7 were cut to 1 and 3.
    observations = np.concatenate([block.observation_arrays[0][:, 0] for block in filled])
    assert observations.tolist() == [*range(12), 0, 0, 0]
    assert np.concatenate([block.rewards[:, 0] for block in filled])[:10].tolist() == list(range(10))


@pytest.mark.parametrize("num_done", [0, 1, 3, 4])
def test_of_a_fragment_that_was_cut_short_the_complete_steps_are_taken_in(num_done: int):
    opened = OpenBlocks(Driver(), Discard([Block(spaces.Discrete(100), SPACE, 1, 1, 6) for _ in range(2)]), 2)
    progress = begun(opened)
    progress.step = progress.row = 2
    progress.open_block.block.observation_arrays[0][...] = 99
    assert opened.has_room(progress) and opened.find_room(progress, 8) == 4
    opened._driver.lane.columns.observation_arrays[0][0, :, 0] = np.arange(3, 11)
    progress.take_in(num_done)
    assert place(progress) == ((2 + num_done, 0, 2 + num_done) if num_done < 4 else (6, 6, 0))
    expected = [99] * 3 + [*range(3, 3 + num_done)][:3]
    assert opened.oldest.block.observation_arrays[0][:, 0].tolist() == expected + [99] * (6 - len(expected))
    if num_done == 4:
        assert progress.open_block.block.observation_arrays[0][0].tolist() == [6]


def test_how_slots_are_laid_into_a_block_is_prepared_once(blocks: list[Block]):
    driver = Driver()
    opened = OpenBlocks(driver, Discard(blocks), 3)
    for start in range(0, 20, 2):
        opened.open(start)
        opened.close_oldest()
    assert driver.num_prepared == 3 and driver.clock.seconds["write"] > 0
