"""Blocks that are filled while lanes go on at their own pace."""

from types import SimpleNamespace

import pytest
from gymnasium import spaces

from mpi_rollout.collect.blocks import Discard, LaneProgress, OpenBlocks
from mpi_rollout.core.clock import Clock
from mpi_rollout.core.layout import Block

SPACE = spaces.Discrete(2)


class Driver:
    """What blocks ask of a driver."""

    def __init__(self):
        self.clock, self.num_prepared = Clock(), 0

    def destinations(self, block: Block) -> dict:
        self.num_prepared += 1
        return {}


@pytest.fixture
def blocks() -> list[Block]:
    return [Block(SPACE, SPACE, 1, 1, 2) for _ in range(3)]


@pytest.fixture
def opened(blocks: list[Block]) -> OpenBlocks:
    return OpenBlocks(Driver(), Discard(blocks), 3)


def begun(opened: OpenBlocks, start: int = 0) -> LaneProgress:
    return LaneProgress(SimpleNamespace(), opened.open(start), start)


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
        assert opened.find_room(progress)
        progress.move_on()
        places.append((progress.step, progress.open_block.start, progress.row))
    assert places == [(5, 4, 1), (6, 6, 0), (7, 6, 1), (8, 8, 0)]


def test_a_fast_lane_waits_when_all_blocks_are_being_filled(opened: OpenBlocks):
    fast = begun(opened)
    slow = LaneProgress(SimpleNamespace(), fast.open_block)
    for _ in range(5):
        assert opened.find_room(fast)
        fast.move_on()
    assert not opened.find_room(fast) and opened.find_room(slow)
    assert opened.oldest.start == 0 and opened.oldest.stop == 2
    closed = opened.close_oldest()
    assert closed is slow.open_block.block and opened.oldest.start == 2
    assert opened.find_room(fast) and fast.next_block.start == 6 and fast.next_block.block is closed


def test_a_slow_lane_goes_on_in_the_block_that_a_fast_one_has_opened(opened: OpenBlocks):
    fast = begun(opened)
    slow = LaneProgress(SimpleNamespace(), fast.open_block, 1, 1)
    fast.row = 1
    for progress in (fast, slow):
        assert opened.find_room(progress)
        progress.move_on()
    assert slow.open_block is fast.open_block and slow.row == fast.row == 0


def test_how_slots_are_laid_into_a_block_is_prepared_once(blocks: list[Block]):
    driver = Driver()
    opened = OpenBlocks(driver, Discard(blocks), 3)
    for start in range(0, 20, 2):
        opened.open(start)
        opened.close_oldest()
    assert driver.num_prepared == 3 and driver.clock.seconds["write"] > 0
