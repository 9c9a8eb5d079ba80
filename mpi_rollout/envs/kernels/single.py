"""CartPole as one env in Python: the reference for each backend.  It needs neither Numba nor torch."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete

from mpi_rollout.envs.kernels.dynamics import (
    THETA_LIMIT,
    X_LIMIT,
    accelerations,
    euler,
    is_outside,
    semi_implicit_euler,
    sine_cosine,
    start_value,
)
from mpi_rollout.envs.kernels.philox import key_words
from mpi_rollout.envs.kernels.starts import start_words
from mpi_rollout.envs.kernels.task import NUM_ENVS, NUM_SEEDS, check_integer, is_semi_implicit
from mpi_rollout.errors import ActionError

HIGH = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], np.float32)


class CartPoleEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One env of a `CartPoleVectorEnv`, with the same bytes.

    `reset` begins its next episode, or episode 0 of another seed.  It has no time limit: `gymnasium.make` adds one.

    Parameters
    ----------
    seed, kinematics_integrator, sutton_barto_reward
        As of `CartPoleVectorEnv`.
    first_env
        The index of this env among all envs of a job.
    device, threads_per_block
        Not used: they are there so that both versions take the same arguments.
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
        self._key = key_words(check_integer("seed", seed, 0, NUM_SEEDS - 1))
        self._env_index = check_integer("first_env", first_env, 0, NUM_ENVS - 1)
        self._integrate = semi_implicit_euler if is_semi_implicit(kinematics_integrator) else euler
        self._is_sutton_barto = bool(sutton_barto_reward)
        self._episode, self._is_running = -1, False
        self._state = (0.0, 0.0, 0.0, 0.0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._key, self._episode = key_words(check_integer("seed", seed, 0, NUM_SEEDS - 1)), -1
        self._episode += 1
        x, x_dot, theta, theta_dot = start_words(self._key, self._env_index, self._episode)
        self._state = (start_value(x), start_value(x_dot), start_value(theta), start_value(theta_dot))
        self._is_running = True
        return np.array(self._state, np.float32), {}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._is_running:
            raise ResetNeeded("reset the env before the first step of an episode")
        if not self.action_space.contains(action):
            raise ActionError(f"the action must be 0 or 1, got {action!r}")
        x, x_dot, theta, theta_dot = self._state
        sine, cosine = sine_cosine(theta)
        x_acc, theta_acc = accelerations(sine, cosine, theta_dot, int(action))
        x, x_dot = self._integrate(x, x_dot, x_acc)
        theta, theta_dot = self._integrate(theta, theta_dot, theta_acc)
        self._state = (x, x_dot, theta, theta_dot)
        terminated = is_outside(x, theta)
        self._is_running = not terminated
        reward = 0.0 - terminated if self._is_sutton_barto else 1.0
        return np.array(self._state, np.float32), reward, terminated, False, {}
