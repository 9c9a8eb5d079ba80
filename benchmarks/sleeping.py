"""An env that only sleeps: many ranks of it need few cores, so that the cost of the ranks themselves shows."""

import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mpi_rollout.process.rank_variables import claimed_rank

_DRAWN_AHEAD = 256


class SleepingEnv(gymnasium.Env):
    """Its steps take time and no core; its episodes have no end.

    Parameters
    ----------
    step_s, spread_s
        Mean and standard deviation of a step, in seconds; gamma distributed, as in the model.  With a mean of 0 it
        does not sleep.
    observation_bytes
        The size of an observation, which is noise.
    slow_s, slow_every, slow_rank
        Each `slow_every`-th step takes `slow_s`, counted from another step in each env; on one rank all do.
    """

    def __init__(
        self,
        step_s: float = 0.001,
        spread_s: float = 0.0,
        observation_bytes: int = 8,
        slow_s: float = 0.0,
        slow_every: int = 0,
        slow_rank: int = -1,
    ):
        self.observation_space = spaces.Box(0, 255, (observation_bytes,), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._step_s, self._spread_s, self._slow_s, self._slow_every = step_s, spread_s, slow_s, slow_every
        if slow_rank == claimed_rank():
            self._slow_every = 1
        self._drawn: Iterator[float] = iter(())
        self._observation = np.random.default_rng(0).integers(0, 255, observation_bytes, np.uint8)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = int(self.np_random.integers(self._slow_every)) if self._slow_every else 0
        return self._observation.copy(), {}

    def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._count += 1
        if self._slow_every and self._count % self._slow_every == 0:
            time.sleep(self._slow_s)
        elif self._step_s:
            time.sleep(self._step_s if self._spread_s == 0 else self._draw())
        return self._observation.copy(), 0.0, False, False, {}

    def _draw(self) -> float:
        seconds = next(self._drawn, None)
        if seconds is None:  # Draws one by one would cost too much of a step's time.
            scale = self._spread_s**2 / self._step_s
            self._drawn = iter(self.np_random.gamma(self._step_s / scale, scale, _DRAWN_AHEAD).tolist())
            seconds = next(self._drawn)
        return seconds
