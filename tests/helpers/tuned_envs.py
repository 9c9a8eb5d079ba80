"""An env and a policy for tests of `tune`."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces

HEAVY_BYTES = 8_000_000


class Plain(gymnasium.Env):
    """Episodes of seven steps, observations of 12 bytes; `trouble` comes in the third step."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, trouble: str = "", heavy: bool = False):
        self._trouble, self._num_steps = trouble, 0
        self._ballast = np.ones(HEAVY_BYTES if heavy else 0, np.uint8)

    def reset(self, *, seed=None, options=None):
        self._num_steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._num_steps += 1
        if self._num_steps == 3:
            if self._trouble == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self._trouble == "raise":
                raise RuntimeError("the simulator has diverged")
            if self._trouble == "hang":
                time.sleep(1000)
        return np.zeros(3, np.float32), 0.0, self._num_steps == 7, False, {}


def count_calls(observations: np.ndarray) -> np.ndarray:
    """A policy."""
    assert observations.shape == (6, 3)
    return np.zeros(len(observations), np.int64)


def fail(observations: np.ndarray) -> np.ndarray:
    """A policy that cannot."""
    raise ZeroDivisionError("no observation is good enough")
