"""Collect from an env and a policy of your own: keep the water in a tank at the level that is asked for.

    mpirun -n 2 python -m mpi_rollout --env-factory examples/own_env.py:make_env --env-kwargs '{"hole_m2": 0.03}' \
        --policy examples/own_env.py:Controller --num-envs 16 --num-steps 500 --out results/tank.h5
"""

import gymnasium
import numpy as np

STEP_S = 1.0
GRAVITY_M_PER_S2 = 9.81


class Tank(gymnasium.Env):
    """A tank of 1 m2.  The action opens its valve, and water runs out through a hole."""

    observation_space = gymnasium.spaces.Box(0, 3, (2,), np.float32)  # The level, and the level asked for, in m.
    action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)  # How far the valve is open.

    def __init__(self, hole_m2: float = 0.02):
        self.hole_m2 = hole_m2

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # Seeds self.np_random: the same seed gives the same episode.
        self.level_m, self.goal_m = self.np_random.uniform(0.5, 2, 2)
        return self._observation(), {}

    def step(self, action):
        inflow_m3 = 0.3 * float(action[0]) * STEP_S
        outflow_m3 = self.hole_m2 * np.sqrt(2 * GRAVITY_M_PER_S2 * self.level_m) * STEP_S  # Torricelli's law.
        self.level_m = max(0.0, self.level_m + inflow_m3 - outflow_m3)
        overflows = self.level_m > 3
        self.level_m = min(self.level_m, 3.0)
        return self._observation(), -abs(self.level_m - self.goal_m), overflows, False, {}

    def _observation(self):
        return np.array([self.level_m, self.goal_m], np.float32)


def make_env(hole_m2: float = 0.02, max_steps: int = 100) -> gymnasium.Env:
    """Make one env.  `--env-kwargs` gives the arguments."""
    return gymnasium.wrappers.TimeLimit(Tank(hole_m2), max_steps)


class Controller:
    """A proportional controller.  Rank 0 makes one, and calls it with the observations of all envs."""

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        level_m, goal_m = observations.T
        return np.clip(0.4 + 2 * (goal_m - level_m), 0, 1)[:, None].astype(np.float32)  # (num_envs, 1)
