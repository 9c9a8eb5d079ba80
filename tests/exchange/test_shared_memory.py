"""Slots in memory that ranks share: who gets it, what is left of it, and that it holds what messages would bring."""

import pytest
from jobs import Job

pytestmark = pytest.mark.any_mpi

SHARED = """
import resource
import numpy as np
from mpi4py import MPI
from mpi_rollout.exchange import shared_memory

comm, nbytes = MPI.COMM_WORLD, 3 << 20
first = shared_memory.shared_zeros(comm, nbytes)
assert first.shape == (nbytes,) and not first.any()
comm.Barrier()
first[comm.rank :: comm.size] = comm.rank + 1
comm.Barrier()
assert (first.reshape(-1, comm.size) == np.arange(comm.size) + 1).all()
second = shared_memory.shared_zeros(comm, nbytes)
assert not second.any()

def mapped():
    return [line for line in open("/proc/self/maps") if "mpi_rollout-" in line]

assert len(mapped()) == 2 and all("/memfd:" in line for line in mapped())
view = first[10:]
del first, second
assert len(mapped()) == 1 and view[0] == 10 % comm.size + 1
print("shared")

if comm.rank == 0:  # A file of a few bytes is the largest that there may be.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes // 2, limits[1]))
assert shared_memory.shared_zeros(comm, nbytes) is None
if comm.rank == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
if comm.rank == comm.size - 1:
    shared_memory._mapped = lambda *place: None
assert shared_memory.shared_zeros(comm, nbytes) is None
assert len(mapped()) == 1
print("apart")
"""

WALKS = """
import trainers
from oracle import differences
from mpi_rollout.exchange import exchanges
from mpi_rollout.process.start import claimed_rank

made = []
def making(comm, nbytes, make=exchanges.shared_zeros):
    made.append(make(comm, nbytes))
    return made[-1]

exchanges.shared_zeros = making
ways = {}, {"num_groups": 2}, {"num_groups": 3, "root_envs": 0}, {"batch_size": 1}, {"batch_size": 2, "root_envs": 0}
found = []
for exchanges.LEAST_NBYTES in (2**62, 0):
    found.append(trainers.walks([("envs:Agreeing", 17, 10, way) for way in ways]))
assert len(made) == len(ways) and all(memory is not None for memory in made)
for (messages, *_), (shared, *_) in zip(*found, strict=True):
    assert differences(messages, shared) == []
assert claimed_rank() or len(found[0]) == len(ways)
print("the same")
"""


@pytest.mark.mpi(3)
def test_all_ranks_share_what_no_name_leads_to_or_none_does(job: Job, num_ranks: int):
    result = job.script(num_ranks, SHARED)
    assert result.code == 0, result.err
    assert result.out.count("shared") == result.out.count("apart") == num_ranks
    assert result.err.count("ranks of this host cannot share memory") == 1


@pytest.mark.mpi(3)
def test_shared_slots_hold_what_messages_bring(job: Job, num_ranks: int):
    result = job.script(num_ranks, WALKS)
    assert result.code == 0, result.err
    assert result.out.count("the same") == num_ranks
