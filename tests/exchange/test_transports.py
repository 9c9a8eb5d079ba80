"""How orders and slots travel: each kind of transport between three ranks, with slots of their own and shared ones."""

import pytest
from jobs import Job

PROGRAM = """
from functools import partial
from itertools import product
import numpy as np
from gymnasium import spaces
from mpi4py import MPI
from mpi_rollout.core.layout import Contents, SlotLayout
from mpi_rollout.core.partition import Partition
from mpi_rollout.exchange.exchange import Command, Exchange
from mpi_rollout.exchange.shared_memory import shared_zeros
from mpi_rollout.exchange.transports import *
from mpi_rollout.exchange.waiting import Wait

ROOM = 7
comm, partition = MPI.COMM_WORLD, Partition(7, 3)
contents = Contents(spaces.Box(0, 1e6, (), np.float64), spaces.Discrete(1000), has_actions=True)
nbytes = SlotLayout(contents, partition.capacity).nbytes

def shared(room):
    return shared_zeros(comm, 3 * room * nbytes).reshape(3, room, nbytes)

def apart(room):
    return None

for kind, memory in product((CollectiveTransport, DirectTransport, SwitchingTransport), (apart, shared)):
    switches = kind is SwitchingTransport
    make = kind if kind is CollectiveTransport else partial(kind, wait=Wait())
    exchange = Exchange(comm.Dup(), partition, 0, contents, make, memory=memory(1))
    envs, step = np.arange(7), 0
    # One step at a time; then fragments of any length in slots with room for 7 steps; then in others.
    for order, num_rows in enumerate([1] * 12 + [7, 1, 3, 7, 1, 1, 3, 3, 7, 7, 1, 3] + [1, 5, 5, 1]):
        if order in (12, 24):
            if comm.rank == 0:
                exchange.send_order(Command.CALL)
            else:
                exchange.receive_order()
            room = ROOM if order == 12 else 5
            exchange.make_room(room, memory(room))
            assert len(exchange.slot.rewards) == exchange.room == (ROOM if order == 12 else 5)
        steps = step + np.arange(num_rows)
        actions = envs * 10 + steps[:, None] % 9
        is_chosen = num_rows > 1 and order % 4 == 3
        if order in (5, 15):  # No slots come back.
            if comm.rank == 0:
                exchange.send_bytes(Command.LOAD, np.arange(order, dtype=np.uint8))
            else:
                exchange.receive_order()
                assert exchange.receive_bytes().tolist() == [*range(order)]
        if comm.rank == 0:
            exchange.send_steps(None if is_chosen else [actions], num_rows, step)
        else:
            exchange.receive_order()
        received = exchange.order
        assert (received.command, received.num_rows, received.step) == (Command.STEP, num_rows, step)
        assert received.is_chosen is is_chosen
        own = actions[:, exchange.envs.start : exchange.envs.stop]
        if not is_chosen:
            (sent,) = received.own_actions
            assert sent.tolist() == own.tolist()
        exchange.infos.forget()
        exchange.own_marks[:num_rows] = 0
        for row in range(num_rows):
            exchange.slot_rows[row].action_arrays[0][...] = own[row]
            exchange.slot_rows[row].rewards[...] = own[row] + 0.25
            exchange.slot_rows[row].observation_arrays[0][...] = own[row] + 0.5
            if (step + row + comm.rank) % 3 == 0:
                exchange.infos.put({"rank": comm.rank, "step": step + row}, row, is_kept=False)
        exchange.own_marks[num_rows - 1] = 0 if num_rows == 1 else 100 + comm.rank
        exchange.own_step_s[0] = order + comm.rank / 8
        if switches and order % 7 == 3 and comm.rank == 1:
            exchange.transport._adaptation.is_short, exchange.transport._adaptation.look_at = lambda: True, 0
        if switches and comm.rank == 0:
            exchange.transport._adaptation.look_at = 0  # Its window is over: it looks at the words of the others.
        if comm.rank:
            exchange.send_slot()
        else:
            exchange.receive_slots()
            columns = exchange.columns
            for row in range(num_rows):
                assert exchange.take(columns.action_arrays[0], step=row).tolist() == actions[row].tolist()
                assert exchange.take(columns.rewards, step=row).tolist() == (actions[row] + 0.25).tolist()
                assert exchange.take(columns.observation_arrays[0], step=row).tolist() == (actions[row] + 0.5).tolist()
            if num_rows > 1:
                assert exchange.marks[:, num_rows - 1].tolist() == [100, 101, 102]
            assert exchange.step_s.tolist() == [order, order + 1 / 8, order + 2 / 8]
            infos = exchange.infos.take()
            expected = [(row, rank) for rank in range(3) for row in range(num_rows) if (step + row + rank) % 3 == 0]
            assert [(row, info["rank"]) for row, _, info in infos] == expected, infos
            assert [rows.start for _, rows, _ in infos] == [partition.envs_of(rank).start for _, rank in expected]
            assert all(info["step"] == step + row for row, _, info in infos)
        step += num_rows
    if comm.rank == 0:
        exchange.send_order(Command.STOP, 3)
    else:
        exchange.receive_order()
        assert (exchange.order.command, exchange.order.argument) == (Command.STOP, 3)
        assert not switches or exchange.transport._direct is not None
    exchange.free()
    print(kind.__name__, memory.__name__, "done")
"""


@pytest.mark.mpi(3)
def test_orders_slots_bytes_and_infos_arrive_whole(job: Job, num_ranks: int):
    result = job.script(num_ranks, PROGRAM)
    assert result.code == 0, result.err
    assert result.out.count("done") == 6 * num_ranks
