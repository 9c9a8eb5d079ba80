"""Envs that allow some actions only, and say which in `action_mask`."""

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Masked(gymnasium.Env):
    """Refuses actions that it has not allowed.  Masks depend on seed and step; some are missing, some allow nothing.

    Every third episode has none.  With FAIL_AT in the environment env 1 fails in so many steps.
    """

    observation_space = spaces.Box(0, 2**62, (2,), np.int64)
    action_space = spaces.Discrete(5, start=2)

    def __init__(self, env_index: int):
        self.index, self.total = env_index, 0

    def reset(self, *, seed=None, options=None):
        self.seed, self.number, self.mask = seed, 0, None
        return self.observe(), self.info()

    def step(self, action):
        allowed = range(2, 7) if self.mask is None else np.flatnonzero(self.mask) + 2 if self.mask.any() else [2]
        assert action in allowed, f"{action} is not in {allowed}"
        self.number, self.total = self.number + 1, self.total + 1
        if self.index == 1 and self.total == int(os.environ.get("FAIL_AT", 0)):
            raise OSError("there is no licence")
        is_over = self.number == 2 + self.seed % 5
        return self.observe(), float(action), is_over, False, self.info()

    def observe(self):
        return np.array([self.seed, self.number])

    def info(self) -> dict[str, Any]:
        self.mask = None
        if self.seed % 3 == 0 or self.number % 4 == 3:
            return {}
        self.mask = self.make(np.random.default_rng((self.seed, self.number)))
        return {"action_mask": self.mask.copy()}

    def make(self, draws: np.random.Generator) -> np.ndarray:
        return draws.integers(0, 2, 5, np.int8) * np.int8(self.number != 2)


class Asked(Masked):
    """Says its masks when it is asked, as sb3-contrib does it; its infos have none."""

    def info(self):
        super().info()
        return {}

    def action_masks(self):
        return np.ones(5, np.bool_) if self.mask is None else self.mask.astype(np.bool_)


class Wrongly(Masked):
    """Its masks are none."""

    def make(self, draws):
        return np.ones(4)

    def step(self, action):
        self.mask = None
        return super().step(action)


class Unmasked(Wrongly):
    """Its actions have no masks."""

    action_space = spaces.Box(2, 4, (), np.float64)

    def step(self, action):
        return super().step(3)


def strict_taxi() -> gymnasium.Env:
    class Strict(gymnasium.Wrapper):
        def reset(self, **kwargs):
            observation, info = super().reset(**kwargs)
            self.mask = info["action_mask"]
            return observation, info

        def step(self, action):
            assert self.mask[action], f"{action} is not in {self.mask}"
            *outcome, info = super().step(action)
            self.mask = info["action_mask"]
            return *outcome, info

    return Strict(gymnasium.make("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"))
