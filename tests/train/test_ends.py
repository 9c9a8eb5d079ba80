"""Two connections at once over the same ranks: each gives what it gives alone."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv
from jobs import Job
from oracle import differences, record

WAYS: Sequence[dict[str, Any]] = [{}, {"num_groups": 2}, {"batch_size": 1}, {"wait": "sleep"}]
FORMS = ("both on all ranks", "the second on the root")


@pytest.mark.mpi(1, 3)
def test_two_connections_at_once_give_what_each_gives_alone(job: Job, num_ranks: int):
    ways = [{}, {"batch_size": 1}] if num_ranks == 1 else WAYS
    second = {"root_envs": 0} if num_ranks > 1 else {}
    cases = [(form, way, other | second) for way, other in zip(ways, reversed(ways), strict=True) for form in FORMS]
    expected = [
        record(SyncVectorEnv([lambda name=name: gymnasium.make(name)] * num_envs), 12)
        for name, num_envs in (("CartPole-v1", 7), ("Acrobot-v1", 5))
    ]
    for case, found in zip(cases, job.train(num_ranks, "two_at_once", cases), strict=True):
        assert differences(found, [*expected, *expected[1:]][: len(found)]) == [], case


BEGIN = """
import sys, threading
import gymnasium, numpy as np
import mpi_rollout
from mpi4py import MPI
POLE, actions = "CartPole-v1", np.zeros(6, int)
"""
REFUSED = """
lock = threading.Lock()

def attempt(*arguments, **options):
    try:
        mpi_rollout.connect(*arguments, **options).__enter__()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

pairs = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2)
with mpi_rollout.connect(POLE, 6) as envs:
    if envs is not None:
        attempt(POLE, 0)
        attempt("No-v0", 6)
        attempt(lambda: lock and gymnasium.make(POLE), 6)
        attempt(POLE, 6, comm=pairs)
        envs.reset()
        envs.send(actions)
        attempt(POLE, 6)
        envs.recv()
        with mpi_rollout.connect(POLE, 6) as others:
            others.reset()
            others.send(actions)
            try: envs.step(actions)
            except Exception as error: print(f"{type(error).__name__}: {error}")
            others.recv()
            print(envs.step(actions)[1].sum())
            envs.send(actions)  # Closing the other connection drops this step.
        envs.reset()
        print(envs.step(actions)[1].sum())
        envs.close()
        attempt(POLE, 6)
with mpi_rollout.connect(POLE, 6) as envs:
    if envs is not None: print(envs.reset()[0].shape)
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_what_cannot_be_is_refused_at_once_and_the_open_connection_goes_on(job: Job, num_ranks: int):
    result = job.script(num_ranks, BEGIN + REFUSED)
    assert (result.code, result.err) == (0, "")
    begins = [
        "UsageError: num_envs must be ",
        "UsageError: env No-v0: ",
        "UsageError: while a connection is open, what another one is told is sent to the ranks and must be picklable",
        "UsageError: connect over some of the ranks that serve a connection which is open; give both the same comm, or",
        "AlreadyPendingCallError: connect while envs are stepping",
        "AlreadyPendingCallError: envs of another connection have been sent actions and not been received; call recv()",
        "6.0",
        "6.0",
        "UsageError: connect in the with statement of a connection that is closed: the other ranks are past it already",
        "(6, 4)",
    ]
    lines = result.out.splitlines()
    assert len(lines) == len(begins)
    for line, begin in zip(lines, begins, strict=True):
        assert line.startswith(begin)


@pytest.mark.mpi(2)
@pytest.mark.parametrize("use", ["raise ValueError('diverged')", "others.send(actions); sys.exit(3)"])
def test_a_trainer_that_fails_with_two_connections_ends_all_ranks_with_its_code(job: Job, num_ranks: int, use: str):
    code = f"""
with mpi_rollout.connect(POLE, 6) as envs, mpi_rollout.connect(POLE, 6) as others:
    if envs is not None:
        envs.reset(), others.reset()
        {use}
print("on")
"""
    result = job.script(num_ranks, BEGIN + code)
    assert result.code == (1 if "raise" in use else 3) and result.out == ""
    assert result.num_tracebacks == result.err.count("ValueError: diverged") == ("raise" in use)


@pytest.mark.mpi(2)
def test_an_env_that_fails_in_one_connection_leaves_the_other_as_it_is(job: Job, num_ranks: int):
    code = """
import envs as test_envs
with mpi_rollout.connect(POLE, 6) as envs, mpi_rollout.connect(test_envs.Stumbling, 6) as others:
    if envs is not None:
        envs.reset(seed=1)
        others.reset(seed=1)
        others.set_attr("fails", ["step", *[""] * 5])
        try: others.step(actions)
        except mpi_rollout.RankError as error: print(type(error).__name__)
        print(np.array_equal(envs.step(actions)[0], others.reset(seed=1) and others.step(actions)[0]))
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.err, result.out) == (0, "", "RankError\nTrue\n")
