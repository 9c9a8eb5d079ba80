"""The limit of a run, measured in the same job: bare loops over the same envs, on all ranks at the same time."""

from collections.abc import Callable
from typing import Any

from gymnasium import spaces

from mpi_rollout.config import RolloutConfig
from mpi_rollout.envs import make_bare
from mpi_rollout.exchange import Exchange
from mpi_rollout.policy import BLOCK_STEPS, RandomPolicy


class Limit:
    """Measures this rank's part of the limit; makes its envs when first asked."""

    def __init__(self, config: RolloutConfig, exchange: Exchange, action_space: spaces.Space):
        self._config, self._exchange, self._action_space = config, exchange, action_space
        self._measure: Callable[[float], float] | None = None

    def __call__(self, seconds: float) -> float:
        """Env steps per second of bare loops that run on all ranks at the same time.  **Collective.**"""
        envs = self._exchange.envs
        try:
            if self._measure is None and envs:
                self._measure = self._make(envs)
        finally:
            self._exchange.comm.Barrier()  # Also when this rank has failed: the others wait here.
        return self._measure(seconds) if self._measure else 0.0

    def _make(self, envs: range) -> Callable[[float], float]:
        draw = RandomPolicy(self._action_space, self._exchange.partition.num_envs, self._config.seed)
        rows = [rows_of(draw(), envs) for _ in range(BLOCK_STEPS)]
        return make_bare(self._config, envs, rows)


def rows_of(actions: Any, envs: range) -> Any:
    """Some envs' rows of batched actions."""
    if isinstance(actions, dict):
        return {key: rows_of(value, envs) for key, value in actions.items()}
    if isinstance(actions, tuple):
        return tuple(rows_of(value, envs) for value in actions)
    return actions[envs.start : envs.stop]
