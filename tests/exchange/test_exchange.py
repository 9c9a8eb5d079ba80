"""One exchange as its two sides see it.  Here the root is alone; `test_transports.py` has other ranks."""

from types import SimpleNamespace

import numpy as np
import pytest
from envs import Counting, Nested
from gymnasium import spaces

from mpi_rollout.core.layout import Contents
from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, leaves
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.orders import HEADER_NBYTES, Command
from mpi_rollout.exchange.transports import NoTransport

LIVES = Leaf(("lives",), np.dtype(np.int64), ())


def exchange_of(
    partition: Partition, first_rank: int = 0, rank: int = 0, action_space: spaces.Space = Nested.action_space
) -> Exchange:
    """An exchange without messages, of this rank."""
    comm = SimpleNamespace(rank=rank, size=first_rank + partition.num_ranks)
    contents = Contents(Counting.observation_space, action_space, infos=(LIVES,))
    return Exchange(comm, partition, first_rank, contents, NoTransport)


def test_an_order_has_aligned_columns_for_the_actions_of_all_envs():
    exchange = exchange_of(Partition(5, 1))
    sizes = [-(-5 * leaf.nbytes // 8) * 8 for leaf in leaves(Nested.action_space)]
    assert exchange.order.nbytes == HEADER_NBYTES + sum(sizes)
    places = [array.ctypes.data - exchange.order.buffer.ctypes.data for array in exchange.order.actions]
    assert places == [HEADER_NBYTES + sum(sizes[:index]) for index in range(len(sizes))]


@pytest.mark.parametrize("space", [spaces.Discrete(100), Nested.action_space], ids=str)
def test_the_actions_of_a_fragment_are_those_of_its_steps(space: spaces.Space):
    """Fragments may have any length, one after the other."""
    draws = np.random.default_rng(0)
    exchange = exchange_of(Partition(7, 3, first_env=10), rank=1, action_space=space)
    for num_steps in (3, 8, 8, 2):
        arrays = [draws.integers(0, 2, (num_steps, 7, *leaf.shape)).astype(leaf.dtype) for leaf in leaves(space)]
        exchange.send_steps(arrays, num_steps, 40)
        assert (exchange.order.num_rows, exchange.order.step) == (num_steps, 40)
        for array, sent, own in zip(arrays, exchange.order.actions, exchange.order.own_actions, strict=True):
            assert sent.dtype == array.dtype and sent.tobytes() == array.tobytes()
            assert own.tobytes() == array[:, 3:5].tobytes()
            assert all(own[row].flags.c_contiguous for row in range(num_steps))


def test_the_actions_of_one_step_are_a_fragment_of_one():
    exchange = exchange_of(Partition(7, 3, first_env=10), rank=1, action_space=spaces.Discrete(100))
    exchange.send_steps([np.ones((4, 7), np.int64)], 4, -1)
    for actions in (np.arange(7), np.arange(7)[None]):
        exchange.send_steps([actions], 1, -1)
        assert exchange.order.actions[0].tolist() == [list(range(7))]
        assert exchange.order.own_actions[0].tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("command", "argument", "num_rows"),
    [
        (Command.STEP, 1, 1),
        (Command.STEP, 5, 5),
        (Command.STOP, 75, 1),
    ],
)
def test_an_order_says_how_many_rows_come_back(command: Command, argument: int, num_rows: int):
    exchange = exchange_of(Partition(2, 1))
    exchange.send_order(command, argument)
    assert (exchange.order.num_rows, exchange.order.step) == (num_rows, -1)


def test_the_root_without_envs_has_no_slot():
    with_envs, without = exchange_of(Partition(4, 2)), exchange_of(Partition(4, 3, root_envs=0))
    assert with_envs.has_own_slot and hasattr(with_envs, "slot")
    assert without.has_own_slot and len(without.envs) == 0
    other = exchange_of(Partition(2, 1), first_rank=1)
    assert not other.has_own_slot and not hasattr(other, "slot") and other.slots.shape == (1, 1, other.layout.nbytes)
    worker = exchange_of(Partition(2, 1), first_rank=1, rank=1)
    assert worker.has_own_slot and not hasattr(worker, "slots")


def test_rows_are_taken_in_env_order_without_the_empty_ones():
    exchange = exchange_of(Partition(5, 2))
    exchange.columns.rewards[:, 0] = [[1, 2, 3], [4, 5, 9]]
    assert exchange.take(exchange.columns.rewards).tolist() == [1, 2, 3, 4, 5]
    assert exchange.take(exchange.columns.rewards, np.array([4, 0])).tolist() == [5, 1]
    taken = exchange.take(exchange.columns.rewards, slice(2, 4))
    exchange.columns.rewards[...] = 0
    assert taken.tolist() == [3, 4]


def test_each_step_of_a_fragment_has_a_row_of_the_slot():
    exchange = exchange_of(Partition(5, 2))
    exchange.make_room(4)
    for row, slot in enumerate(exchange.slot_rows):
        slot.rewards[...] = np.arange(3) + 10 * row
        slot.observation_arrays[0][...] = row
    exchange.own_marks[:] = [0, 0, 7, 8]
    exchange.own_step_s[0] = 0.5
    assert exchange.slot.rewards.tolist() == [[0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]]
    assert exchange.columns.rewards[0].tolist() == exchange.slot.rewards.tolist()
    assert exchange.marks.tolist() == [[0, 0, 7, 8], [0] * 4] and exchange.step_s.tolist() == [0.5, 0]
    exchange.columns.rewards[1, :, :2] = [[40, 41]] * 4
    assert exchange.take(exchange.columns.rewards, step=2).tolist() == [20, 21, 22, 40, 41]
    assert exchange.take(exchange.columns.rewards, np.array([4, 0]), 3).tolist() == [41, 30]


def test_the_roots_own_infos_need_no_message_and_are_taken_once():
    exchange = exchange_of(Partition(4, 2, first_env=6))
    exchange.infos.put({"a": 1}, 0, is_kept=True)
    assert exchange.infos.take() == [(0, slice(0, 2), {"a": 1})] and exchange.infos.take() == []
    exchange.infos.put({"a": 1}, 0, is_kept=True)
    exchange.infos.receive()
    assert exchange.infos.take() == []


def test_all_rows_of_a_lost_ranks_slot_say_that_its_episodes_are_over():
    exchange = exchange_of(Partition(5, 2))
    exchange.make_room(3)
    exchange.slots[...] = 1
    last = np.arange(8).reshape(2, 4)
    exchange.end_episodes(1, [last])
    columns = exchange.columns
    assert columns.truncations.all() and not columns.terminations[1].any()
    assert not columns.rewards[1].any() and columns.rewards[0].any()
    assert columns.observation_arrays[0][1, :, :2].tolist() == [last.tolist()] * 3
    ((_, mask),) = columns.info_arrays
    assert mask[0].all() and not mask[1].any() and not exchange.marks[1].any()
