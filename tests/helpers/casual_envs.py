"""Envs whose observations have another dtype than their space."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FLOATS = spaces.Box(-9, 9, (2,), np.float32)


class Casual(gymnasium.Env):
    """Observes `convert` of the number of its step, in a space of another dtype; ends after three steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, convert: Callable[[int], Any]):
        self.observation_space, self.convert = space, convert

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return self.convert(0), {}

    def step(self, action):
        self.number += 1
        return self.convert(self.number), 1.5, self.number == 3, False, {}


def casual_float64() -> Casual:
    """For `--env-factory`."""
    return Casual(FLOATS, lambda number: np.array([number / 3, 0.1]))


def late(observed: str, declared: str, step: int) -> Casual:
    """Observes its space's dtype before this step, and another one from then on."""
    space = spaces.Box(-9, 9, (2,), np.dtype(declared).type)
    return Casual(space, lambda number: np.zeros(2, observed if number >= step else declared))
