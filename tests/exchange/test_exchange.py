"""One exchange as its two sides see it.  Here the root is alone; `test_transports.py` has other ranks."""

from types import SimpleNamespace

import numpy as np
import pytest
from envs import Counting, Nested
from gymnasium import spaces

from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, leaves
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.exchange import HEADER_NBYTES, Command, Contents, Exchange
from mpi_rollout.exchange.transports import SwitchingTransport, Transport
from mpi_rollout.exchange.waiting import SpinWait
from mpi_rollout.exchange.world import SingleRankComm

LIVES = Leaf(("lives",), np.dtype(np.int64), ())


def exchange_of(
    partition: Partition, first_rank: int = 0, rank: int = 0, action_space: spaces.Space = Nested.action_space
) -> Exchange:
    """An exchange without messages, of this rank."""
    comm = SimpleNamespace(rank=rank, size=first_rank + partition.num_ranks)
    contents = Contents(Counting.observation_space, action_space, infos=(LIVES,))
    return Exchange(comm, partition, first_rank, contents, Transport, SpinWait())


def test_an_order_has_aligned_columns_for_the_actions_of_all_envs():
    exchange = exchange_of(Partition(5, 1))
    sizes = [-(-5 * leaf.nbytes // 8) * 8 for leaf in leaves(Nested.action_space)]
    assert exchange.order_nbytes == HEADER_NBYTES + sum(sizes)
    places = [array.ctypes.data - exchange._order.ctypes.data for array in exchange.action_arrays]
    assert places == [HEADER_NBYTES + sum(sizes[:index]) for index in range(len(sizes))]


def test_each_rank_sees_the_actions_of_its_own_envs():
    """Envs 10 to 16 on three ranks: rank 1 has 13 and 14."""
    space = spaces.Discrete(100)
    exchange = exchange_of(Partition(7, 3, first_env=10), rank=1, action_space=space)
    exchange.put_actions([np.arange(100)], 10)
    assert exchange.envs == range(13, 15) and exchange.actions.tolist() == [13, 14]
    assert exchange.action_arrays[0].tolist() == list(range(10, 17))


def test_an_order_says_what_to_do_and_with_which_code():
    exchange = exchange_of(Partition(2, 1))
    for command, code in (
        (Command.STEP, 1),
        (Command.STEP, 1),
        (Command.STOP, 75),
        (Command.STOP, 0),
        (Command.STEP, 1),
    ):
        exchange.post_order(command, code)
        assert exchange.order == (command, code)


def test_the_root_without_envs_has_no_slot():
    with_envs, without = exchange_of(Partition(4, 2)), exchange_of(Partition(4, 3, dedicated_root=True))
    assert with_envs.has_own_slot and hasattr(with_envs, "slot")
    assert without.has_own_slot and len(without.envs) == 0
    other = exchange_of(Partition(2, 1), first_rank=1)
    assert not other.has_own_slot and not hasattr(other, "slot") and other.slots.shape == (1, 1, other.layout.nbytes)
    worker = exchange_of(Partition(2, 1), first_rank=1, rank=1)
    assert worker.has_own_slot and not hasattr(worker, "slots")


def test_what_the_root_writes_into_its_own_slot_is_among_all_slots():
    exchange = exchange_of(Partition(3, 1))
    exchange.slot.rewards[...] = [1, 2, 3]
    exchange.own_marks[0] = 7
    assert exchange.columns.rewards.tolist() == [[[1, 2, 3]]] and exchange.marks.tolist() == [[7]]


def test_rows_are_taken_in_env_order_without_the_empty_ones():
    exchange = exchange_of(Partition(5, 2))
    exchange.columns.rewards[:, 0] = [[1, 2, 3], [4, 5, 9]]
    assert exchange.take(exchange.columns.rewards).tolist() == [1, 2, 3, 4, 5]
    assert exchange.take(exchange.columns.rewards, np.array([4, 0])).tolist() == [5, 1]
    taken = exchange.take(exchange.columns.rewards, slice(2, 4))
    exchange.columns.rewards[...] = 0
    assert taken.tolist() == [3, 4]


def test_the_roots_own_infos_need_no_message_and_are_taken_once():
    exchange = exchange_of(Partition(4, 2, first_env=6))
    exchange.put_infos({"a": 1})
    assert exchange.take_infos() == [(0, slice(0, 2), {"a": 1})] and exchange.take_infos() == []
    exchange.put_infos({})
    assert exchange.take_infos() == []
    exchange.put_infos({"a": 1})
    exchange.drop_infos()
    assert exchange.take_infos() == []


def test_a_worker_says_how_many_bytes_its_infos_have():
    exchange = exchange_of(Partition(4, 2), rank=1)
    sent = []
    exchange.comm.Isend = lambda pickled, *_: sent.append(len(pickled))
    exchange.put_infos({"a": np.arange(3)})
    exchange.post_slot()
    assert sent == [exchange._own_infos_nbytes[0]] and sent[0] > 0
    exchange.forget_infos()
    exchange.put_infos({})
    exchange.post_slot()
    assert exchange._own_infos_nbytes[0] == 0 and len(sent) == 1


def test_infos_that_cannot_be_read_are_refused_with_their_envs():
    exchange = exchange_of(Partition(5, 2, first_env=10))
    with pytest.raises(DataError, match=r'^envs 13 to 14: their infos cannot be read on rank 0: .*infos="none"\)$'):
        exchange._unpack(slice(3, 5), np.zeros(9, np.uint8))


def test_the_slot_of_a_lost_rank_says_that_its_episodes_are_over():
    exchange = exchange_of(Partition(5, 2))
    exchange.slots[...] = 1
    last = np.arange(8).reshape(2, 4)
    exchange.end_episodes(1, [last])
    columns = exchange.columns
    assert columns.truncations[:, 0].tolist() == [[True] * 3] * 2 and columns.terminations[1, 0].tolist() == [False] * 3
    assert columns.rewards[1, 0].tolist() == [0] * 3 and columns.rewards[0].any()
    assert columns.observation_arrays[0][1, 0, :2].tolist() == last.tolist()
    ((_, mask),) = columns.info_arrays
    assert mask[:, 0].tolist() == [[True] * 3, [False] * 3] and exchange.marks[1, 0] == 0


def test_only_a_transport_that_switches_is_told_of_a_shortage():
    exchange = exchange_of(Partition(2, 1))
    exchange.note_shortage()
    told = []
    exchange.transport = SwitchingTransport.__new__(SwitchingTransport)
    exchange.transport.note_shortage = lambda: told.append(True)
    exchange.note_shortage()
    assert told == [True]


def test_a_single_rank_has_its_object_without_a_message():
    exchange = exchange_of(Partition(2, 1))
    assert exchange.spread({"seed": 3}) == {"seed": 3} and SingleRankComm().rank == exchange.comm.rank
    exchange.free()
