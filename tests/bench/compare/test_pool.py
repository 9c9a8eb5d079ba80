"""The process pool is SyncVectorEnv in several processes: the same outputs, bit for bit."""

import os
import signal

import gymnasium
import numpy as np
import pytest
from envs import Counting, Failing, Nested
from gymnasium.vector import SyncVectorEnv
from jobs import assert_same_bytes
from oracle import rollout

from mpi_rollout.bench.compare.pool import ProcessPoolVectorEnv
from mpi_rollout.errors import UsageError
from mpi_rollout.policies.random import RandomPolicy


@pytest.mark.parametrize("make", [Nested, lambda: gymnasium.make("CartPole-v1")])
@pytest.mark.parametrize(("num_envs", "num_processes"), [(5, 2), (3, 3)])
def test_a_pool_gives_what_sync_vector_env_gives(make, num_envs, num_processes):
    found = []
    for envs in (SyncVectorEnv([make] * num_envs), ProcessPoolVectorEnv(make, num_envs, num_processes)):
        found.append(rollout(envs, RandomPolicy(envs.single_action_space, num_envs, 3), 60, seed=11))
        found.append(rollout(envs, RandomPolicy(envs.single_action_space, num_envs, 3), 9))  # Goes on, without a seed.
        envs.close()
    assert found[0]["terminations"].any()
    assert_same_bytes(found[0], found[2])
    assert_same_bytes(found[1], found[3])


def test_what_a_pool_returns_is_the_callers_own():
    envs = ProcessPoolVectorEnv(Counting, 4, 2)
    first, _ = envs.reset(seed=0)
    before = first.copy()
    _, rewards, *_ = envs.step(np.full(4, 2))
    kept = rewards.copy()
    envs.step(np.full(4, 3))
    assert np.array_equal(first, before) and np.array_equal(rewards, kept)
    envs.close()


def test_an_env_that_fails_in_a_pool_is_named():
    envs = ProcessPoolVectorEnv(Failing, 4, 2)
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match="envs 2 to 3: RuntimeError: the simulator has diverged"):
        for _ in range(9):
            envs.step(np.full(4, 2))
    envs.close()


def test_a_process_of_a_pool_that_dies_is_noticed_at_once():
    envs = ProcessPoolVectorEnv(Counting, 4, 2)
    envs.reset(seed=0)
    os.kill(envs._workers[1][2].pid, signal.SIGKILL)
    envs._workers[1][2].join()
    with pytest.raises(RuntimeError, match="a process of the pool has died"):
        envs.step(np.full(4, 2))
    envs.close()


def test_more_processes_than_envs_are_refused():
    with pytest.raises(UsageError, match="got 2 envs on 3 ranks"):
        ProcessPoolVectorEnv(Counting, 2, 3)


def test_a_pool_that_cannot_be_made_is_closed_without_another_error(monkeypatch: pytest.MonkeyPatch):
    """Its `__del__` closes it, even where its constructor has failed; the processes that were started end."""
    started, fork = [], ProcessPoolVectorEnv._fork

    def fork_once(pool, *arguments):
        if started:
            raise OSError("no more processes")
        started.append(fork(pool, *arguments))
        return started[0]

    monkeypatch.setattr(ProcessPoolVectorEnv, "_fork", fork_once)
    pool = ProcessPoolVectorEnv.__new__(ProcessPoolVectorEnv)
    with pytest.raises(OSError, match="no more processes"):
        pool.__init__(Counting, 4, 2)
    pool.close()
    assert not started[0][2].is_alive()
    pool = ProcessPoolVectorEnv.__new__(ProcessPoolVectorEnv)
    with pytest.raises(UsageError):
        pool.__init__(Counting, 1, 2)
    pool.close()
