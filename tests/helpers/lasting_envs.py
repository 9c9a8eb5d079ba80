"""Envs whose episodes have one step, and which note what their process holds after few and after many of them."""

import gc
import os
import tracemalloc
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LOOKS, EVERY = 5, 300  # Several looks: a block that waits to be written is no growth.
FEW, MANY = 3_000, 18_000  # Episodes of all envs of a process.


class Brief(gymnasium.Env):
    """Each step is an episode."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.ones(1, np.float32), 1.0, True, False, {}


class Looking(Brief):
    """Looks at what its process holds."""

    num_episodes = 0  # Of all envs of this process.

    def __init__(self) -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        Looking.num_episodes += 1
        for when in (FEW, MANY):
            if Looking.num_episodes in range(when, when + LOOKS * EVERY, EVERY):
                with open(f"held-{os.getpid()}-{when}", "a") as file:
                    file.write(f"{held_nbytes()}\n")
        return super().reset()


def held_nbytes() -> int:
    """What Python and NumPy hold; Python keeps lists of what is free until it collects garbage."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
