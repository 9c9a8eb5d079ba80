"""An env for tests of `tune`."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Plain(gymnasium.Env):
    """Episodes of seven steps."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)
    _num_steps = 0

    def reset(self, *, seed=None, options=None):
        self._num_steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._num_steps += 1
        return np.zeros(3, np.float32), 0.0, self._num_steps == 7, False, {}
