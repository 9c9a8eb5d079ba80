"""Envs of dm_env's API, made by factories, and policies for dm_control's tasks."""

from functools import partial

import dm_env
import numpy as np
from dm_env import specs
from stopping_envs import Policy


class Walk(dm_env.Environment):
    """Draws a number at each reset and step; ends after 5 steps, or is cut after 3 where the first number is large.

    Observes the step and the number, and the last action; the action is an int32, which is checked.
    """

    def __init__(self, generator=None):
        if generator is not None:
            self._rng = generator
        self._number = 0

    def draw(self):
        return self._rng.random()

    def observe(self):
        self.drawn = float(self.draw())
        return {"place": np.array([self._number, self.drawn]), "action": np.int32(getattr(self, "action", 0))}

    def reset(self):
        self._number, self.action = 0, 0
        observation = self.observe()
        self.is_short = self.drawn > 0.5
        return dm_env.restart(observation)

    def step(self, action):
        self.action_spec().validate(action)
        self.action = action
        self._number += 1
        if self._number == 3 and self.is_short:
            return dm_env.truncation(self.drawn, self.observe())
        if self._number == 5:
            return dm_env.termination(None, self.observe())
        return dm_env.transition(0.5, self.observe(), 0.9)

    def observation_spec(self):
        return {"place": specs.Array((2,), np.float64), "action": specs.BoundedArray((), np.int32, 0, 2)}

    def action_spec(self):
        return specs.DiscreteArray(3, np.int32)


class WithSeed(Walk):
    """Has a method that seeds it, and its generator where nobody looks."""

    def seed(self, seed):
        self.hidden = [np.random.RandomState(seed)]

    def draw(self):
        return self.hidden[0].random_sample()


class Unseeded(Walk):
    """Draws from a generator where nobody looks."""

    hidden = np.random.default_rng()

    def draw(self):
        return self.hidden.random()


class Around(dm_env.Environment):
    """A wrapper that passes nothing on but what dm_env has."""

    def __init__(self, env):
        self._environment = env

    def reset(self):
        return self._environment.reset()

    def step(self, action):
        return self._environment.step(action)

    def observation_spec(self):
        return self._environment.observation_spec()

    def action_spec(self):
        return self._environment.action_spec()


class Listed(Walk):
    """Has a spec of a kind that shimmy does not know."""

    def observation_spec(self):
        return [specs.Array((2,), np.float64)]


def walk():
    return Walk(np.random.RandomState())


def modern():
    return Around(Walk(np.random.default_rng()))


def hidden():
    return Around(WithSeed())


SAME = Walk(np.random.RandomState())


def same():
    return SAME


def suite(domain, task, **task_kwargs):
    from dm_control import suite

    return suite.load(domain, task, task_kwargs)


def _steer(number, observations):
    total = sum(np.sum(part.reshape(len(part), -1), axis=1) for part in observations.values())
    return np.sin(total[:, None] * np.arange(1, number + 1))


balance, reach, walker = (Policy(partial(_steer, number)) for number in (1, 2, 6))
