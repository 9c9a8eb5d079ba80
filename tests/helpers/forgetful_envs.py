"""Envs that do not give the same episode again from the same seed, each for another reason; and some that do."""

import random
from itertools import count

import gymnasium
import numpy as np
from gymnasium import spaces

_numbers = count()


class Seeded(gymnasium.Env):
    """Does as it should: what it gives follows from the seed of its reset and from its actions."""

    observation_space, action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        return self.observe(), float(action), bool(self.np_random.random() < 0.05), False, {}

    def observe(self):
        return self.draw().astype(np.float32)

    def draw(self):
        return self.np_random.random(2)


class Unseeded(Seeded):
    """Ignores the seed."""

    def __init__(self):
        self.generator = np.random.default_rng()

    def draw(self):
        return self.generator.random(2)


class SeededOnce(Seeded):
    """Heeds the seed of its first reset only."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None if hasattr(self, "begun") else self.begin(seed))

    def begin(self, seed):
        self.begun = True
        return seed


class OfGlobalGenerators(Seeded):
    """Draws from the generators that all envs of a process share."""

    def draw(self):
        return np.array([random.random(), np.random.random()])


class DrawnWhenMade(Seeded):
    """Draws its task in its constructor, as some robot simulators do."""

    def __init__(self):
        self.task = np.random.random(2)

    def draw(self):
        return self.task


class Rewarding(Seeded):
    """Its rewards alone come from elsewhere."""

    def step(self, action):
        observation, _, *others = super().step(action)
        return observation, float(next(_numbers)), *others


class Counting(Seeded):
    """Shows how many episodes it has begun, and how many envs of its kind were made."""

    num_made = 0

    def __init__(self):
        Counting.num_made += 1
        self.number, self.num_begun = Counting.num_made, 0

    def reset(self, *, seed=None, options=None):
        self.num_begun += 1
        return super().reset(seed=seed)

    def draw(self):
        return np.array([self.num_begun, 0.0])


class Nested(Seeded):
    """Observations and actions are nested, and it writes into the same arrays again."""

    observation_space = spaces.Dict({"a": spaces.Box(-9, 9, (2,)), "b": spaces.Tuple((spaces.Discrete(9),))})
    action_space = spaces.Dict({"go": spaces.Discrete(3), "turn": spaces.Box(-1, 1, (2,))})

    def __init__(self):
        self.array = np.zeros(2, np.float32)

    def step(self, action):
        return self.observe(), float(action["turn"][0]), False, False, {}

    def observe(self):
        self.array[:] = self.draw()
        return {"a": self.array, "b": (int(self.np_random.integers(9)),)}
