"""Tianshou's vector envs.  Who steps them resets those whose episode has ended, as its Collector does."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from mpi_rollout.studies.compare import SEED, Setup
from systems.stepped import Stepper, actions_of, in_turn, make_env


@contextmanager
def _of(setup: Setup, kind: str) -> Iterator[Stepper]:
    import tianshou.env

    envs = getattr(tianshou.env, kind)([partial(make_env, setup.env["env"])] * setup.num_envs)
    envs.seed(SEED)

    def step(actions: Any) -> Any:
        _, _, terminations, truncations, _ = envs.step(actions)
        ended = np.flatnonzero(terminations | truncations)
        if len(ended):
            envs.reset(ended)
        return terminations, truncations

    with closing(envs):
        yield in_turn(envs.reset, step, actions_of(setup), False)


dummy, subproc, shmem = (partial(_of, kind=f"{kind}VectorEnv") for kind in ("Dummy", "Subproc", "Shmem"))
