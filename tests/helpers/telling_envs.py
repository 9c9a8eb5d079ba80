"""Envs whose infos follow from where they are, so that a misplaced one is seen."""

import os

import numpy as np
from envs import Counting
from gymnasium import spaces
from native_envs import Drift


class Telling(Counting):
    """Says its place in every step and reset, its lives now and then, and at an episode's end how long it was.

    All follows from the seed of the episode.  With FAIL_AT in the environment, each env fails in that step of its own.
    """

    num_resets = num_calls = 0

    def reset(self, *, seed=None, options=None):
        self.name, self.episode, self.num_resets = -1, seed % 50, self.num_resets + 1
        observation, _ = super().reset(seed=seed)
        return observation, self.tell(False)

    def step(self, action):
        self.num_calls += 1
        if self.num_calls == int(os.environ.get("FAIL_AT", 0)):
            raise OSError("there is no licence")
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, self.tell(terminated or truncated)

    def tell(self, is_over):
        info = {"place": np.array([self.name % 1000, self.episode, self.step_number], np.int32), "text": "a word"}
        if self.step_number % 2:
            info["lives"] = self.step_number
        if is_over:
            info["episode"] = {"l": self.step_number, "r": self.step_number / 2}
        return info


class Echoing(Counting):
    """Says what it observes; its lives in odd steps; and at the end of an episode how long it was."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"place": observation}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"place": observation}
        if self.step_number % 2:
            info["lives"] = self.step_number
        if terminated or truncated:
            info["episode"] = {"l": self.step_number}
        return observation, reward, terminated, truncated, info


class Odd(Telling):
    """Says in its fifth step what ODD names."""

    def tell(self, is_over):
        info = super().tell(is_over)
        if self.step_number == 2 and self.num_resets == 2:
            info["lives"] = {
                "float": 1.5,
                "text": "many",
                "vector": np.zeros(2),
                "large": 2**40,
                "dict": {"lives": 1},
                "nan": float("nan"),
            }[os.environ["ODD"]]
        return info


class Late(Telling):
    """Says nothing in its first episode, and then two things."""

    def tell(self, is_over):
        return {} if self.num_resets <= 2 else {"late": 1, "text": "a word"}


class Restarting(Telling):
    """Fails in the second step of some episodes."""

    def step(self, action):
        if self.step_number == 1 and self.seed % 7 == 3:
            raise OSError("there is no licence")
        return super().step(action)


class TwoMasks(Telling):
    """Allows some of its actions, of two components, and says it as Gymnasium wants it: in a tuple."""

    action_space = spaces.MultiDiscrete([3, 2])

    def step(self, action):
        self.allowed = [mask.astype(bool) for mask in self.mask]
        assert all(mask[part] for mask, part in zip(self.allowed, action, strict=True))
        return super().step(action[0])

    def tell(self, is_over):
        ones = np.ones(3, np.int8), np.ones(2, np.int8)
        ones[0][self.step_number % 3] = ones[1][self.step_number % 2] = 0
        self.mask = ones
        return super().tell(is_over) | {"action_mask": self.mask}


class TellingDrift(Drift):
    """Natively vectorized envs that say where they are, some of them a second thing, and one for all."""

    def reset(self, *, seed=None, options=None):
        observations, _ = super().reset(seed=seed)
        return observations, {"where": self._place.copy(), "version": 3.5}

    def step(self, actions):
        *outcome, _ = super().step(actions)
        has_far = self._place > 10
        far = np.where(has_far, self._place / 10, 7.0)
        return *outcome, {"where": self._place.copy(), "far": far, "_far": has_far, "version": 3.5}


def telling_drift(env_indices, seed):
    return TellingDrift(env_indices, seed)
