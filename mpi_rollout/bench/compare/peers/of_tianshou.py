"""Tianshou's vector envs.  Who steps them resets those whose episode has ended, as its Collector does."""

from typing import Any

import numpy as np

from mpi_rollout.bench.compare.peers import ActionsInTurn, drawn_actions, env_function
from mpi_rollout.bench.compare.setups import Setup
from mpi_rollout.bench.compare.turns import SEED, BatchSystem, Ends


def dummy(setup: Setup) -> BatchSystem:
    """Make the loop."""
    return _system(setup, "DummyVectorEnv")


def subproc(setup: Setup) -> BatchSystem:
    """Make a process for each env."""
    return _system(setup, "SubprocVectorEnv")


def shmem(setup: Setup) -> BatchSystem:
    """Make a process for each env, with observations in shared memory."""
    return _system(setup, "ShmemVectorEnv")


def _system(setup: Setup, kind: str) -> BatchSystem:
    import tianshou.env

    envs = getattr(tianshou.env, kind)([env_function(setup)] * setup.num_envs)
    envs.seed(SEED)

    def step(actions: Any) -> Ends:
        _, _, terminations, truncations, _ = envs.step(actions)
        ended = np.flatnonzero(terminations | truncations)
        if len(ended):
            envs.reset(ended)
        return terminations, truncations

    return BatchSystem(ActionsInTurn(envs.reset, step, envs.close, drawn_actions(setup), False))
