"""How orders and slots travel: each kind of transport between three ranks, and when one that switches does."""

from types import SimpleNamespace

import numpy as np
import pytest
from jobs import Job

from mpi_rollout.core.layout import MASKED, SHORT
from mpi_rollout.exchange.transports import SwitchingTransport, Transport

PROGRAM = """
import numpy as np
from gymnasium import spaces
from mpi4py import MPI
from mpi_rollout.core.layout import SHORT
from mpi_rollout.core.partition import Partition
from mpi_rollout.exchange.exchange import Command, Contents, Exchange
from mpi_rollout.exchange.transports import *
from mpi_rollout.exchange.waiting import SleepWait

comm = MPI.COMM_WORLD
partition = Partition(7, 3)
contents = Contents(spaces.Box(0, 1e6, (), np.float64), spaces.Discrete(1000))
exchange = Exchange(comm, partition, 0, contents, {kind}, SleepWait())
for step in range(20):
    if comm.rank == 0:
        exchange.put_actions([np.arange(7) * 10 + step], 0)
        exchange.post_order(Command.STEP)
    else:
        exchange.await_order()
        assert exchange.order == (Command.STEP, 0)
    if step == 5:
        assert exchange.spread({{"step": 5}} if comm.rank == 0 else None) == {{"step": 5}}
    assert exchange.actions.tolist() == [env * 10 + step for env in exchange.envs]
    exchange.slot.rewards[...] = exchange.actions
    exchange.slot.observation_arrays[0][...] = exchange.actions + 0.5
    exchange.put_infos({{"rank": comm.rank, "step": step}} if (step + comm.rank) % 3 == 0 else {{}})
    if {switches} and step % 7 == 3 and comm.rank == 1:
        exchange.own_mark[0] = 0
        exchange.transport._adaptation.watch.is_short = lambda: True
    if comm.rank:
        exchange.post_slot()
        continue
    exchange.await_slots()
    assert exchange.take(exchange.columns.rewards).tolist() == [env * 10 + step for env in range(7)]
    assert exchange.take(exchange.columns.observation_arrays[0]).tolist() == [env * 10 + step + 0.5 for env in range(7)]
    if (exchange.marks == SHORT).any():
        exchange.note_shortage()
    infos = exchange.take_infos()
    expected = [rank for rank in range(3) if (step + rank) % 3 == 0]
    assert [info["rank"] for _, info in infos] == expected, infos
    starts = [partition.envs_of(rank).start for rank in expected]
    assert [rows.start for rows, _ in infos] == starts and all(info["step"] == step for _, info in infos)
if comm.rank == 0:
    exchange.post_order(Command.STOP, 3)
else:
    exchange.await_order()
    assert exchange.order == (Command.STOP, 3)
    assert not {switches} or exchange.transport._direct is not None
exchange.free()
"""
KINDS = ("CollectiveTransport", "NonblockingTransport", "DirectTransport", "SwitchingTransport")


@pytest.mark.mpi
@pytest.mark.parametrize("kind", KINDS)
def test_orders_slots_objects_and_infos_arrive_whole(job: Job, kind: str):
    result = job.script(3, PROGRAM.format(kind=kind, switches=kind == "SwitchingTransport"))
    assert result.code == 0, result.err


def test_the_root_alone_sends_nothing():
    transport = Transport()
    assert transport.spread(5) == 5 and transport.spread() is None and transport.arrival is None


class Noted:
    """A transport that notes what is asked of it."""

    def __init__(self, name: str, calls: list[str]):
        self.name, self.calls = name, calls

    def __getattr__(self, method: str):
        return lambda: self.calls.append(f"{self.name} {method}")


class Switching:
    """A transport that switches between two that note their calls; `sleeps` and `is_short` are what it is told."""

    def __init__(self, mark: int | None = 0):
        self.calls: list[str] = []
        self.mark = None if mark is None else np.array([mark])
        self.sleeps = self.is_short = False
        self.num_made, self.header = 0, np.zeros(1, np.int64)
        self.transport = SwitchingTransport(Noted("collective", self.calls), self._make, self.header, self.mark)
        watch = SimpleNamespace(restart=lambda: self.calls.append("restart"), is_short=lambda: self.is_short)
        self.transport._adaptation = SimpleNamespace(watch=watch, sleeps=self._sleeps)

    def _make(self) -> Noted:
        self.num_made += 1
        return Noted("direct", self.calls)

    def _sleeps(self, is_other_short: bool) -> bool:
        return self.sleeps or is_other_short

    def take_calls(self) -> list[str]:
        calls = self.calls[:]
        self.calls.clear()
        return calls


def test_the_root_changes_its_way_with_an_order_and_listens_by_the_new_one():
    switching = Switching()
    transport = switching.transport
    transport.post_order()
    transport.await_slots()
    assert switching.take_calls() == ["collective post_order", "collective await_slots"] and switching.header[0] == 0
    switching.sleeps = True
    transport.post_order()
    assert switching.take_calls() == ["collective send_order", "collective finish", "direct listen"]
    assert switching.header[0] == 1
    transport.post_order()
    transport.await_slots()
    assert switching.take_calls() == ["direct post_order", "direct await_slots"]
    switching.sleeps = False
    transport.post_order()
    assert switching.take_calls() == ["direct send_order", "direct finish", "restart", "collective listen"]
    assert switching.header[0] == 0
    switching.sleeps = True
    transport.post_order()
    assert switching.num_made == 1
    transport.free()
    assert switching.take_calls()[-1] == "direct free"


def test_one_shortage_on_another_rank_changes_the_way_once():
    switching = Switching()
    switching.transport.note_shortage()
    switching.transport.post_order()
    assert switching.header[0] == 1
    switching.transport.post_order()
    assert switching.header[0] == 0


def test_a_worker_changes_its_way_when_an_order_says_so():
    switching = Switching()
    transport = switching.transport
    transport.await_order()
    switching.header[0] = 1
    transport.await_order()
    transport.post_slot()
    assert switching.take_calls() == [
        "collective await_order", "collective await_order", "collective finish", "direct post_slot",
    ]  # fmt: skip


@pytest.mark.parametrize(("mark", "is_told"), [(0, True), (MASKED, True), (9, False), (None, False)])
def test_a_rank_that_is_short_of_processor_time_says_so_if_it_has_nothing_else_to_say(mark: int | None, is_told: bool):
    switching = Switching(mark)
    switching.transport.post_slot()
    assert mark is None or switching.mark[0] == mark
    switching.is_short = True
    switching.transport.post_slot()
    assert mark is None or switching.mark[0] == (SHORT if is_told else mark)


def test_a_rank_that_sleeps_already_does_not_say_that_it_is_short():
    switching = Switching()
    switching.header[0] = 1
    switching.transport.await_order()
    switching.is_short = True
    switching.transport.post_slot()
    assert switching.mark[0] == 0
