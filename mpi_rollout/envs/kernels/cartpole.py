"""CartPole as one vector env, over a backend that has the states."""

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.spaces import set_spaces
from mpi_rollout.envs.kernels.backends import backend_of
from mpi_rollout.envs.kernels.dynamics import THETA_LIMIT, X_LIMIT
from mpi_rollout.envs.kernels.philox import key_words
from mpi_rollout.envs.kernels.rows import OBSERVATION_SIZE, has_rows, num_rows_of
from mpi_rollout.envs.kernels.task import LONGEST, NUM_ENVS, NUM_SEEDS, Task, check_integer, is_semi_implicit
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.errors import ActionError

Reset = tuple[np.ndarray, dict[str, Any]]
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
_HIGH = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], np.float32)


class CartPoleVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """CartPole-v1 of Gymnasium: the same spaces, dynamics, rewards and ends, with other random numbers.

    The data of env i depend on (seed, first_env + i, episode, actions) only, so that slices of a job's envs give the
    same bytes as all of them in one.  The arrays that `step` and `reset` return are new each time; infos are empty.
    It has `rollout` and `last_observations` of `mpi_rollout.envs.rollout.Rollout` as well.

    Parameters
    ----------
    backend
        "numba", "torch" or "cuda".
    num_envs
        How many envs it has.
    seed
        The key of all random numbers, 0 <= seed < 2**64.
    first_env
        The index of env 0 among all envs of a job.
    max_episode_steps
        The time limit: an episode is truncated in this step, whether or not it is terminated in it as well.
    kinematics_integrator
        "euler", or "semi-implicit euler".
    sutton_barto_reward
        Rewards are -1 for a step that terminates and 0 for others, instead of 1 for each.
    device
        The device of torch, such as "cuda:1", or the number of the CUDA device.
    threads_per_block
        Of CUDA.
    """

    reproducibility = Reproducibility.EPISODE
    takes_uint8 = True
    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        backend: str,
        num_envs: int = 1,
        seed: int = 0,
        first_env: int = 0,
        max_episode_steps: int = 500,
        kinematics_integrator: str = "euler",
        sutton_barto_reward: bool = False,
        device: str | int | None = None,
        threads_per_block: int | None = None,
    ) -> None:
        num_envs = check_integer("num_envs", num_envs, 1, NUM_ENVS)
        first_env = check_integer("first_env", first_env, 0, NUM_ENVS - num_envs)
        limit = check_integer("max_episode_steps", max_episode_steps, 1, LONGEST)
        is_semi = is_semi_implicit(kinematics_integrator)
        self._seed = check_integer("seed", seed, 0, NUM_SEEDS - 1)
        set_spaces(self, num_envs, Box(-_HIGH, _HIGH), Discrete(2))
        task = Task(num_envs, first_env, limit, is_semi, bool(sutton_barto_reward))
        self._backend = backend_of(backend, task, device=device, threads_per_block=threads_per_block)
        self._first_env, self._was_reset = first_env, False
        self._num_rows: WeakKeyDictionary[RolloutColumns, int] = WeakKeyDictionary()  # Of columns that were checked.
        self._row = (
            np.zeros((1, num_envs, OBSERVATION_SIZE), np.float32),
            np.zeros((1, num_envs)),
            np.zeros((1, num_envs), np.bool_),
            np.zeros((1, num_envs), np.bool_),
        )
        self._columns_of_row = RolloutColumns(*self._row)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin episodes: episode 0 of each env at first and whenever there is a seed, else each env's next one.

        Parameters
        ----------
        seed
            The new key, for all envs: env i has its own random numbers by its index.
        options
            "reset_mask", (num_envs,) bool: reset these envs only; not together with a seed.
            "episodes", (num_envs,) int64: begin these episodes, to take them again.

        Returns
        -------
        The observations (num_envs, 4) of all envs, and no infos.
        """
        options = options or {}
        envs = self._chosen(options.get("reset_mask"), seed)
        if seed is not None:
            self._seed = check_integer("seed", seed, 0, NUM_SEEDS - 1)
        if "episodes" in options:
            episodes = self._checked_episodes(options["episodes"])
        elif seed is None and self._was_reset:
            episodes = self._backend.episodes() + 1
        else:
            episodes = np.zeros(self.num_envs, np.int64)
        self._backend.begin(key_words(self._seed), envs, episodes[envs])
        self._was_reset = True
        return self._backend.observations(), {}

    def step(self, actions: np.ndarray) -> Step:
        """Take one step with actions (num_envs,) of integers; those of envs that begin an episode are not used."""
        self._backend.rollout(self._checked_actions(np.asarray(actions)[np.newaxis]), self._columns_of_row)
        observations, rewards, terminations, truncations = (array[0].copy() for array in self._row)
        return observations, rewards, terminations, truncations, {}

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps with actions (num_steps, num_envs) of integers; see `mpi_rollout.envs.rollout.Rollout`."""
        actions = self._checked_actions(np.asarray(actions))
        num_rows = self._num_rows.get(columns)
        if num_rows is None:
            num_rows = self._num_rows[columns] = num_rows_of(columns, self.num_envs)
        if len(actions) > num_rows:
            raise ValueError(f"the columns have room for {num_rows} steps, got actions of {len(actions)}")
        self._backend.rollout(actions, columns)

    def last_observations(self) -> np.ndarray:
        """Return the observations (num_envs, 4) float32 that the last step or reset has led to, in a new array."""
        return self._backend.observations()

    @property
    def episodes(self) -> np.ndarray:
        """The numbers (num_envs,) int64 of the episodes that the envs are in."""
        return self._backend.episodes()

    def _chosen(self, mask: object, seed: int | None) -> np.ndarray:
        """Return the indices of the envs to reset."""
        if mask is None:
            return np.arange(self.num_envs)
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            expected = f"a bool array ({self.num_envs},) with at least one True"
            raise ValueError(f"options['reset_mask'] must be {expected}, got {mask!r}")
        if seed is not None:
            raise ValueError("a seed is for all envs, and cannot come with options['reset_mask']")
        if not self._was_reset:
            raise ResetNeeded("reset all envs before some of them")
        return np.flatnonzero(mask)

    def _checked_episodes(self, episodes: object) -> np.ndarray:
        array = np.asarray(episodes)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu" or array.min() < 0:
            raise ValueError(f"options['episodes'] must be {self.num_envs} integers from 0 on, got {episodes!r}")
        return array.astype(np.int64)

    def _checked_actions(self, actions: np.ndarray) -> np.ndarray:
        """Return actions (L, num_envs) of int64 or uint8 with C-contiguous rows, or raise before any step."""
        if not self._was_reset:
            raise ResetNeeded("reset the envs before their first step")
        if actions.ndim != 2 or actions.shape[1] != self.num_envs or actions.dtype.kind not in "iu":
            expected = f"integers (num_steps, {self.num_envs})"
            raise ActionError(f"actions must be {expected}, got an array {actions.shape} of {actions.dtype}")
        # One pass and no temporary array: some action is neither 0 nor 1 where a bit other than the lowest is set.
        if int(np.bitwise_or.reduce(actions, axis=None)) & ~1:
            row, env = np.argwhere((actions != 0) & (actions != 1))[0]
            place = f"env {self._first_env + env}" + (f" in row {row}" if len(actions) > 1 else "")
            raise ActionError(f"the action of {place} must be 0 or 1, got {actions[row, env]}")
        is_fit = actions.dtype in (np.int64, np.uint8) and (actions.flags.c_contiguous or has_rows(actions))
        return actions if is_fit else np.ascontiguousarray(actions, np.int64)


numba_envs, torch_envs, cuda_envs = (partial(CartPoleVectorEnv, name) for name in ("numba", "torch", "cuda"))
