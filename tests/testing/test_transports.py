"""Our own transports keep the contract of `Transport`, and the test of it notices those that do not."""

import pytest
from jobs import Job

OURS = """
from functools import partial
from mpi4py import MPI
from mpi_rollout.exchange.transports import CollectiveTransport, DirectTransport, NoTransport, SwitchingTransport
from mpi_rollout.exchange.waiting import Wait
from mpi_rollout.testing.transports import check_transport

comm = MPI.COMM_WORLD
if comm.size == 1:
    check_transport(comm, NoTransport)
else:
    check_transport(comm, CollectiveTransport)
    for sleeps in (True, False):
        direct = partial(DirectTransport, wait=Wait(lambda: sleeps))
        check_transport(comm, direct)
        check_transport(comm, direct, range(comm.size - 1, comm.size))
    switched = []

    def switching(buffers):
        transport = SwitchingTransport(buffers, Wait())
        count = iter(range(10**6))
        transport._adaptation.sleeps = lambda is_other_short: next(count) // 5 % 2 == 1
        transport._adaptation.restart = lambda: None
        transport._adaptation.look_at = 0.0
        switched.append(transport)
        return transport

    check_transport(comm, switching)
    assert switched[0]._direct is not None
print("kept")
"""


@pytest.mark.mpi(1, 2, 3, 5)
def test_our_transports_keep_the_contract(job: Job, num_ranks: int):
    result = job.script(num_ranks, OURS)
    assert (result.code, result.out.count("kept")) == (0, num_ranks), result.err


WRONG = """
from mpi4py import MPI
from mpi_rollout.exchange.transports import CollectiveTransport
from mpi_rollout.testing.transports import check_transport

class Late(CollectiveTransport):
    "Brings the slots of the round before."
    def receive_slots(self, num_rows):
        before = self._slots.all.copy()
        super().receive_slots(num_rows)
        self._slots.all[1:] = before[1:]

class Short(CollectiveTransport):
    "Brings one row."
    def send_slot(self, num_rows):
        self._slots.own[1:] = 0
        super().send_slot(num_rows)

class Mixed(CollectiveTransport):
    "Gives the root's slot to another rank."
    def receive_slots(self, num_rows):
        super().receive_slots(num_rows)
        self._slots.all[1] = self._slots.all[0]

class Deaf(CollectiveTransport):
    "Brings the first order again and again."
    first = None
    def receive_order(self):
        super().receive_order()
        order = self._order[0]
        self.first = bytes(order) if self.first is None else self.first
        order[:] = self.first

class Lossy(CollectiveTransport):
    "Leaves out the last byte of what follows."
    def receive_bytes(self, data):
        super().receive_bytes(data)
        data[-1] ^= 1

class Stale(CollectiveTransport):
    "Goes on with the slots that it had first."
    has_some = False
    def use_slots(self, slots):
        if not self.has_some:
            super().use_slots(slots)
        self.has_some = True
    def send_slot(self, num_rows):
        super().send_slot(1)
    def receive_slots(self, num_rows):
        super().receive_slots(1)

for wrong in (Late, Short, Mixed, Deaf, Lossy, Stale):
    try:
        check_transport(MPI.COMM_WORLD, wrong)
    except AssertionError as error:
        print(f"{wrong.__name__} {error}\\n", end="")  # In one piece.
"""


@pytest.mark.mpi(2)
def test_a_transport_that_breaks_it_is_told_on_all_ranks(job: Job, num_ranks: int):
    result = job.script(num_ranks, WRONG)
    assert result.code == 0, result.err
    for name in ("Late", "Short", "Mixed", "Stale"):
        assert result.out.count(f"{name} rank 0, Round(") == num_ranks, result.out
    for name, what in (("Deaf", "the order is not"), ("Lossy", "the bytes after the order are not")):
        assert result.out.count(f"{name} rank 1, Round(") == num_ranks
        assert result.out.count(what) == num_ranks
