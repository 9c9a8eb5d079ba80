"""How episodes begin: the first states, from (seed, env index, episode)."""

from typing import Any

import numpy as np

from mpi_rollout.envs.kernels.dynamics import start_value
from mpi_rollout.envs.kernels.philox import philox

AT_ONCE = 8192  # Episodes: their temporary arrays fit into a cache.


def start_words(key: tuple[int, int], env_indices: Any, episodes: Any) -> tuple[Any, Any, Any, Any]:
    """Return the four random words of episodes: of ints, int64 arrays, or int64 tensors.

    The counter is (env index, episode, use, 0).  Use 0 is the beginning of an episode, the only one that CartPole has.
    """
    zero = env_indices * 0
    return philox(env_indices, episodes, zero, zero, *key)


def start_states(key: tuple[int, int], env_indices: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Return the first states (4, n) float64 of n episodes."""
    states = np.empty((4, len(env_indices)))
    for start in range(0, len(env_indices), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        states[:, part] = start_value(np.stack(start_words(key, env_indices[part], episodes[part])))
    return states
