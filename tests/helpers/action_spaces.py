"""Spaces of actions, one of each kind of leaf."""

from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.policies.random import RandomPolicy

INF, FLOAT32_MAX = np.inf, float(np.finfo(np.float32).max)
LEAVES = {
    "discrete": spaces.Discrete(3, start=-1),
    "discrete_one": spaces.Discrete(1),
    "discrete_256": spaces.Discrete(256),
    "discrete_257": spaces.Discrete(257, start=5),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "multi_discrete": spaces.MultiDiscrete([2, 300, 1]),
    "multi_discrete_start": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[-7, 0], [2, 100]]),
    "box": spaces.Box(-2, 3, (2,), np.float32),
    "box_scalar": spaces.Box(0, 1, (), np.float64),
    "box_16": spaces.Box(-1, 1, (3,), np.float16),
    "box_by_component": spaces.Box(np.array([-1, 10], np.float32), np.array([1, 30], np.float32)),
    "box_unbounded": spaces.Box(-INF, INF, (2,), np.float32),
    "box_from_below": spaces.Box(5, INF, (2,), np.float64),
    "box_from_above": spaces.Box(-INF, -3, (2,), np.float32),
    "box_mixed": spaces.Box(np.array([-INF, 0, -INF, -1.0]), np.array([INF, INF, 0, 1.0]), dtype=np.float64),
    "box_int": spaces.Box(-3, 4, (2,), np.int16),
    "box_bytes": spaces.Box(0, 255, (2,), np.uint8),
    "box_bool": spaces.Box(0, 1, (2,), np.bool_),
    "box_int_from_below": spaces.Box(0, INF, (2,), np.int64),
    "box_int_unbounded": spaces.Box(-INF, INF, (2,), np.int64),
    "box_all_of_float32": spaces.Box(-FLOAT32_MAX, FLOAT32_MAX, (2,), np.float32),
}


def batch(space: spaces.Space, num_envs: int = 4) -> Any:
    return RandomPolicy(space, num_envs, 0)()
