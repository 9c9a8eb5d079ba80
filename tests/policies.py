"""Policies for `--policy`: some that look at what they see, some that return what they must not."""

import numpy as np


def leaning(observations: np.ndarray) -> np.ndarray:
    """For CartPole: push to the side to which the pole falls."""
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def by_look(observations: np.ndarray) -> np.ndarray:
    """For `envs.Counting`: looks at each env's observation alone, so it may be given any of them together."""
    return 2 + observations.sum(axis=1) % 5


def too_large(observations: np.ndarray) -> np.ndarray:
    """Actions that CartPole does not have, for env 1."""
    actions = np.zeros(len(observations), np.int64)
    actions[1] = 2
    return actions


def too_few(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations) - 1, np.int64)


def broken(observations: np.ndarray) -> np.ndarray:
    raise ArithmeticError("the network has no weights")
