"""An env that only sleeps: many ranks of it need few cores, so that what they cost besides their envs is seen."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_DRAWN_AHEAD = 256


class SleepingEnv(gymnasium.Env):
    """Its steps take time and no core; its episodes have no end.

    Parameters
    ----------
    step_s, spread_s
        Mean and standard deviation of a step, in seconds; gamma distributed, as the model has it.  A mean of 0 is no
        sleep at all.
    observation_bytes
        Of an observation.
    """

    def __init__(self, step_s: float = 0.001, spread_s: float = 0.0, observation_bytes: int = 8):
        self.observation_space = spaces.Box(0, 255, (observation_bytes,), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._step_s, self._spread_s, self._drawn = step_s, spread_s, iter(())
        self._observation = np.zeros(observation_bytes, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._step_s:
            time.sleep(self._step_s if self._spread_s == 0 else self._draw())
        return self._observation.copy(), 0.0, False, False, {}

    def _draw(self) -> float:
        found = next(self._drawn, None)
        if found is None:  # One by one, the draws would cost more than they are for.
            scale = self._spread_s**2 / self._step_s
            self._drawn = iter(self.np_random.gamma(self._step_s / scale, scale, _DRAWN_AHEAD).tolist())
            found = next(self._drawn)
        return found
