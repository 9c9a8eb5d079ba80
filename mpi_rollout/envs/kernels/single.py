"""CartPole as one env in Python: the reference for each device.  It needs neither Numba nor torch."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete

from mpi_rollout.envs.kernels.cartpole import HIGH, MOST_ENVS, MOST_SEED, check, is_semi_implicit
from mpi_rollout.envs.kernels.dynamics import is_outside, key_words, moved, philox, start_value
from mpi_rollout.errors import ActionError


class CartPoleEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One env of `cartpole.make_envs`, with the same arguments and bytes.

    `reset` begins its next episode, or episode 0 of another seed.  It has no time limit: `gymnasium.make` adds one.
    `first_env` is its index among all envs of a job; `device` and `threads_per_block` are not used.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        seed: int = 0,
        first_env: int = 0,
        kinematics_integrator: str = "euler",
        sutton_barto_reward: bool = False,
        device: str | int | None = None,
        threads_per_block: int | None = None,
    ) -> None:
        self.observation_space, self.action_space = Box(-HIGH, HIGH), Discrete(2)
        self._key = key_words(check("seed", seed, 0, MOST_SEED))
        self._env_index = check("first_env", first_env, 0, MOST_ENVS - 1)
        self._is_semi_implicit = is_semi_implicit(kinematics_integrator)
        self._is_sutton_barto = bool(sutton_barto_reward)
        self._episode, self._is_running = -1, False
        self._state: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._key, self._episode = key_words(check("seed", seed, 0, MOST_SEED)), -1
        self._episode += 1
        self._state = tuple(map(start_value, philox(self._env_index, self._episode, 0, 0, *self._key)))
        self._is_running = True
        return np.array(self._state, np.float32), {}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._is_running:
            raise ResetNeeded("reset the env before the first step of an episode")
        if not self.action_space.contains(action):
            raise ActionError(f"the action must be 0 or 1, got {action!r}")
        x, x_dot, theta, theta_dot = self._state
        self._state = moved(x, x_dot, theta, theta_dot, int(action), self._is_semi_implicit)
        terminated = is_outside(self._state[0], self._state[2])
        self._is_running = not terminated
        reward = 0.0 - terminated if self._is_sutton_barto else 1.0
        return np.array(self._state, np.float32), reward, terminated, False, {}
