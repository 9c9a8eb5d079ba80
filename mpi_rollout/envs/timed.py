"""What a single env's steps and resets take, with nothing around them."""

from time import perf_counter
from typing import NamedTuple

import gymnasium
import numpy as np

from mpi_rollout.core.seeding import episode_seeds

WINDOW_S = 1.0
_LEAST_STEPS, _WARM_UP_STEPS = 20, 5


class Times(NamedTuple):
    """Seconds of each step, in order, without the first few; of each reset but the first."""

    step_s: np.ndarray
    reset_s: np.ndarray

    @property
    def reset_mean_s(self) -> float:
        """0 if no episode ended."""
        return float(self.reset_s.mean()) if len(self.reset_s) else 0.0

    @property
    def reset_spread_s(self) -> float:
        """0 if no episode ended."""
        return float(self.reset_s.std()) if len(self.reset_s) else 0.0

    @property
    def steps_per_episode(self) -> float:
        """On average; 0 if no episode ended."""
        return len(self.step_s) / len(self.reset_s) if len(self.reset_s) else 0.0


def time_steps(env: gymnasium.Env, seed: int = 0, window_s: float = WINDOW_S) -> Times:
    """Step an env with random actions for some seconds."""
    seeds = episode_seeds(seed, 0)
    env.action_space.seed(seed)
    env.reset(seed=next(seeds))
    steps, resets, begin = [], [], perf_counter()
    while len(steps) < _LEAST_STEPS + _WARM_UP_STEPS or perf_counter() - begin < window_s:
        action = env.action_space.sample()
        before = perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        after = perf_counter()
        steps.append(after - before)
        if terminated or truncated:
            env.reset(seed=next(seeds))
            resets.append(perf_counter() - after)
    return Times(np.array(steps[_WARM_UP_STEPS:]), np.array(resets))
