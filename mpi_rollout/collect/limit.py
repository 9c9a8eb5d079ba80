"""The limit of a run, measured in the same job: bare loops over the same envs, on all ranks at the same time."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gymnasium import spaces

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.spaces import rows_of
from mpi_rollout.envs.bare import make_bare
from mpi_rollout.envs.env_maker import maker_of
from mpi_rollout.errors import EnvError, words_of
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy

if TYPE_CHECKING:
    from mpi4py import MPI


class Limit:
    """Measures this rank's part of the limit; makes its envs when first asked."""

    def __init__(self, config: RolloutConfig, comm: "MPI.Intracomm", envs: range, action_space: spaces.Space):
        self._config, self._comm, self._envs, self._action_space = config, comm, envs, action_space
        self._measure: Callable[[float], float] | None = None

    def __call__(self, seconds: float) -> float:
        """Measure env steps per second of bare loops that run on all ranks at the same time.

        **Collective.**  A rank without envs sleeps as long: its wait for the others' results would take a core from
        their loops.
        """
        try:
            if self._measure is None and self._envs:
                self._measure = self._make()
        finally:
            self._comm.Barrier()  # Also when this rank has failed: the others wait here.
        try:
            if self._measure:
                return self._measure(seconds)
        except Exception as error:
            what = words_of(error)
            raise EnvError(f"measuring the limit: {what}; leave out --measure-limit") from error
        time.sleep(seconds)
        return 0.0

    def _make(self) -> Callable[[float], float]:
        draw = RandomPolicy(self._action_space, self._config.num_envs, self._config.seed)
        mine = slice(self._envs.start, self._envs.stop)
        rows = [rows_of(draw(), mine) for _ in range(BLOCK_STEPS)]
        return make_bare(maker_of(self._config), self._envs, self._config.seed, rows)
