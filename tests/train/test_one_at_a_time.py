"""The ranks of a job serve one connection at a time: one may follow another, and a second one is refused."""

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv
from jobs import Job
from oracle import differences, record

import mpi_rollout

BEGIN = """
import sys, threading
import gymnasium, h5py, numpy as np
import mpi_rollout
from mpi4py import MPI
POLE, actions, rank = "CartPole-v1", np.zeros(6, int), MPI.COMM_WORLD.rank

def attempt(*arguments, **options):
    try:
        with mpi_rollout.connect(*arguments, **options): print("opened")
    except Exception as error:
        print(f"{type(error).__name__}: {error}".partition(";")[0], flush=True)
"""
REFUSAL = "UsageError: connect while another connection of this job is open: its ranks serve one at a time"
WAY_OUT = (
    "; leave the with statement of that one first, or evaluate on rank 0 in a local env, as gymnasium.make(...) or "
    "gymnasium.vector.SyncVectorEnv([...])"
)
REFUSED = """
pair = MPI.COMM_WORLD.Split(rank // 2)
with mpi_rollout.connect(POLE, 6, record="first.h5") as envs:
    if envs is not None:
        attempt(POLE, 6)
        attempt(POLE, 4, num_groups=2, record="second.h5")
        attempt("No-v0", 6, comm=pair)
        envs.reset(seed=1)
        envs.send(actions)
        thread = threading.Thread(target=attempt, args=(POLE, 6))
        thread.start()
        thread.join()
        attempt(POLE, 2, comm=MPI.COMM_SELF)
        envs.recv()
        try: envs.step(actions + 7)
        except mpi_rollout.ActionError: attempt(lambda: gymnasium.make(POLE), 6)
        envs.step(actions)
if rank == 0:
    with h5py.File("first.h5") as file: print(file["trajectories/rewards"].shape)
for options in ({}, {"num_groups": 2}, {"batch_size": 1, "wait": "sleep"}):
    with mpi_rollout.connect(POLE, 5 + len(options), record=f"{len(options)}.h5", **options) as envs:
        if envs is not None: print(envs.reset()[0].shape)
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(2, 3)
def test_a_second_connection_is_refused_at_once_and_the_first_goes_on_and_others_follow(job: Job, num_ranks: int):
    result = job.script(num_ranks, BEGIN + REFUSED)
    assert (result.code, result.err) == (0, "")
    shapes = ["(2, 6)", *(f"({num_envs}, 4)" for num_envs in (5, 6, 7))]
    assert result.out.splitlines() == [*[REFUSAL] * 4, "opened", REFUSAL, *shapes]
    assert not list(job.folder.glob("second.h5*"))


@pytest.mark.mpi(2, 3)
def test_all_ranks_end_where_a_trainer_opens_two_connections(job: Job, num_ranks: int):
    code = """
with mpi_rollout.connect(POLE, 6) as envs, mpi_rollout.connect(POLE, 6) as others:
    print("in")
print("on")
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.out, result.num_tracebacks) == (1, "", 1)
    assert result.err.count(REFUSAL.partition(": ")[2] + WAY_OUT) == 1


@pytest.mark.any_mpi
@pytest.mark.mpi(2, 3)
def test_within_the_with_statement_of_a_closed_connection_all_ranks_refuse_another_one(job: Job, num_ranks: int):
    """Ranks may be past the place where rank 0 opens it: they would wait for each other."""
    code = """
with mpi_rollout.connect(POLE, 6) as envs:
    if envs is not None: envs.close()
    attempt(POLE, 6)
with mpi_rollout.connect(POLE, 6) as envs:
    if envs is not None:
        envs.close()
        attempt(POLE, 6)
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.err, result.out.count(REFUSAL)) == (0, "", num_ranks + 1)


@pytest.mark.mpi(2)
def test_an_env_that_connects_is_refused_on_its_rank(job: Job, num_ranks: int):
    code = """
class Nested(gymnasium.Wrapper):
    def __init__(self, env_index):
        super().__init__(gymnasium.make(POLE))
        self.index = env_index
    def reset(self, **options):
        if self.index == 1: mpi_rollout.connect(POLE, 2).__enter__()
        return super().reset(**options)
with mpi_rollout.connect(Nested, 2) as envs:
    if envs is not None:
        try: envs.reset()
        except mpi_rollout.RankError as error: print(error)
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.err) == (0, "") and REFUSAL in result.out and "rank 1 (" in result.out


def test_one_process_may_have_several_connections_and_each_gives_what_it_gives_alone():
    first, second = mpi_rollout.connect("CartPole-v1", 3), mpi_rollout.connect("Acrobot-v1", 2)
    try:
        second.reset(seed=1)
        for envs, name in ((first, "CartPole-v1"), (second, "Acrobot-v1"), (first, "CartPole-v1")):
            expected = record(SyncVectorEnv([lambda name=name: gymnasium.make(name)] * envs.num_envs), 12)
            assert differences(record(envs, 12), expected) == []
    finally:
        first.close()
        second.close()
