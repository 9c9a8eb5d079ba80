"""An env that draws in the order of a set of text, which depends on the seed of Python's hashes."""

import gymnasium
import numpy as np
from gymnasium import spaces

NAMES = ("drift", "bound", "start", "delay", "noise", "slope")


class Draws(gymnasium.Env):
    """Observes what it has drawn for each name; an episode has four steps."""

    observation_space = spaces.Box(0, 1, (len(NAMES),), np.float64)
    action_space = spaces.Discrete(2)

    def drawn(self) -> np.ndarray:
        values = {name: self.np_random.random() for name in set(NAMES)}
        return np.array([values[name] for name in NAMES])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.drawn(), {}

    def step(self, action):
        self.count += 1
        return self.drawn(), 1.0, self.count == 4, False, {}
