"""An env whose values leave its space, or are not finite, at known steps."""

import os

import gymnasium
import numpy as np
from gymnasium import spaces

INF = np.inf
FLOAT = np.float32


class Wrong(gymnasium.Env):
    """In its episodes of nine steps env 3 leaves a Box in step 4, env 1 a Discrete in step 2, env 2 is NaN from step 6.

    The last reward of env 0 is infinite.
    """

    observation_space = spaces.Dict(
        x=spaces.Box(-1, 1, (2,), np.float32),
        n=spaces.Discrete(5),
        image=spaces.Box(0, 255, (3,), np.uint8),
        free=spaces.Box(-INF, INF, (), np.float64),
    )
    action_space = spaces.Discrete(2)

    def __init__(self, env_index: int, sulks: str = ""):
        self.index, self.sulks = env_index, sulks

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return self.observe(), {}

    def step(self, action):
        self.number += 1
        if self.number == 7 and self.index == 0 and os.path.exists(self.sulks):
            raise OSError("there is no licence")
        is_last = self.number == 9
        return self.observe(), INF if is_last and self.index == 0 else 1.0, is_last, False, {}

    def observe(self):
        by_rounding = FLOAT(1) + FLOAT(1e-7)
        return {
            "x": np.array([1.5 if (self.index, self.number) == (3, 4) else 0, by_rounding], np.float32),
            "n": 7 if (self.index, self.number) == (1, 2) else 1,
            "image": np.array([0, 255, 3], np.uint8),
            "free": np.nan if self.index == 2 and self.number > 5 else 1.0,
        }
