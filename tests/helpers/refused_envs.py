"""What newcomers give as envs, and what is none or cannot be stored."""

import sys
import types

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1, 1, (2,))
SPACES = {
    "slash": lambda: spaces.Dict({"a/b": BOX}),
    "no name": lambda: spaces.Dict({"": BOX, "a": BOX}),
    "dots": lambda: spaces.Dict({"a": spaces.Dict({"..": BOX})}),
    "zero byte": lambda: spaces.Dict({"a\0b": BOX}),
    "no text": lambda: spaces.Dict({"\udcff": BOX}),
    "no numbers": lambda: spaces.Dict({"a": BOX, "none": spaces.Box(-1, 1, (0,))}),
    "no choices": lambda: spaces.MultiDiscrete([]),
    "empty Dict": lambda: spaces.Dict({}),
    "empty Tuple": lambda: spaces.Tuple(()),
    "in a Dict": lambda: spaces.Dict({"a": BOX, "none": spaces.Tuple(())}),
    "integers": lambda: spaces.Dict({1: BOX, "a": BOX}),
    "indices": lambda: spaces.Dict({"ä": spaces.Tuple((BOX, BOX)), "_index_0": BOX}),
}


class Env(gymnasium.Env):
    """Draws observations of any space."""

    def __init__(self, observation_space: spaces.Space = BOX, action_space: spaces.Space = BOX):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, False, False, {}


def observing(name: str) -> Env:
    return Env(observation_space=SPACES[name]())


def acting(name: str) -> Env:
    return Env(action_space=SPACES[name]())


def dividing():
    return 1 / 0


def asserting(*_, is_licensed=False):
    assert is_licensed


def bare_of_metadata():
    env = Env()
    env.metadata = None
    return env


def spaceless(name: str) -> Env:
    env = Env()
    delattr(env, name)
    return env


def forgetful():
    Env()


def unmade():
    return Env


def vectorized():
    return gymnasium.make_vec("CartPole-v1", 2)


def other():
    return np.zeros(3)


def of_gym(version: str):
    """An env of the old gym, which need not be installed."""
    sys.modules["gym"] = types.ModuleType("gym")
    sys.modules["gym"].__version__ = version
    return type("Old", (), {"__module__": "gym.envs", "step": None})()


def done():
    env = Env()
    env.step = lambda action: (BOX.sample(), 1.0, False, {})
    return env


def bare():
    env = Env()
    env.reset = lambda **_: BOX.sample()
    return env


class Unseeded(Env):
    """Has the signature of the old gym."""

    def reset(self):
        return BOX.sample(), {}


class Needy(Env):
    def reset(self, seed, options):
        return BOX.sample(), {}


class Idle(Env):
    def step(self):
        return BOX.sample(), 1.0, False, False, {}


def wrapped(kind: str):
    return gymnasium.wrappers.TimeLimit(globals()[kind](), 3)


class Renewed(gymnasium.Wrapper):
    """Makes an env of the old signature one of the new."""

    def reset(self, *, seed=None, options=None):
        return self.env.reset()


class Passing(gymnasium.Wrapper):
    def reset(self, **kwargs):
        return self.env.reset(**kwargs)
