"""Policies for `--policy`: some that look at what they see, some that return what they must not."""

from itertools import count
from typing import Any

import numpy as np
from envs import Nested

from mpi_rollout.policies.random import RandomPolicy


def leaning(observations: np.ndarray) -> np.ndarray:
    """For CartPole: push to the side to which the pole falls."""
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def as_sb3_predicts(observations: np.ndarray) -> tuple[np.ndarray, None]:
    return leaning(observations), None


def by_look(observations: np.ndarray) -> np.ndarray:
    """For `envs.Counting`: looks at each env's observation alone, so it may be given any of them together."""
    return 2 + observations.sum(axis=1) % 5


class Scribbling:
    """Decides as another policy, then writes into all that it was ever given or has returned, and takes it apart."""

    def __init__(self, policy: Any):
        self.policy, self.seen = policy, []

    def __call__(self, observations: Any) -> Any:
        actions = self.policy(observations)
        for tree in (*self.seen, observations):
            fill(tree)
        self.seen = [*self.seen[-3:], observations, actions]
        return actions


def fill(tree: Any) -> None:
    if isinstance(tree, dict):
        for key in list(tree):
            fill(tree.pop(key))
    elif isinstance(tree, tuple):
        for part in tree:
            fill(part)
    else:
        assert tree.flags.writeable and tree.flags.c_contiguous
        tree.fill(1)


def drawn(_observations: Any, steps=count()) -> Any:  # noqa: B008  It counts over calls.
    """For 16 `envs.Nested`: what the random policy does with seed 0."""
    return RandomPolicy(Nested.action_space, 16, 0).at(next(steps))


scribbling_by_look, scribbling_nested = Scribbling(by_look), Scribbling(drawn)


def too_strong(observations: np.ndarray) -> np.ndarray:
    """For Pendulum: more than it can, of the first env by rounding alone."""
    actions = np.full((len(observations), 1), 7.5)
    actions[0] = np.nextafter(np.float32(2), np.float32(3))
    return actions


def planning(observations: np.ndarray) -> np.ndarray:
    """Actions of `envs.Counting` for the next ten steps, from what was seen before them: (10, num_envs)."""
    seen = (np.abs(np.asarray(observations).reshape(len(observations), -1)).sum(axis=1) * 1000).astype(np.int64)
    return np.stack([2 + (seen + 7 * step) % 5 for step in range(10)])
