"""A functional env as one vector env: NumPy outside, JAX inside."""

import math
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.spaces import Space, Tree, leaves, set_spaces, tree_of
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.jax_slices import scan
from mpi_rollout.envs.jax_slices.functional import FunctionalEnv
from mpi_rollout.envs.jax_slices.outline import checked_spaces
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.errors import ActionError, UsageError

CHUNK_NBYTES = 2**22  # Of the outcome of one compiled call: it stays in the cache.
MOST_STEPS = 64  # In one compiled call.
RESULTS = ("rewards", "terminations", "truncations")


class JAXVectorEnv(VectorEnv):
    """Envs of `mpi_rollout.envs.jax_slices.jax_slice`, which describes the arguments.

    Arrays that `step` and `reset` return are new each time; infos are empty.  It has `rollout` and `last_observations`
    of `mpi_rollout.envs.rollout.Rollout` as well.  All steps go through one compiled loop of up to `chunk` steps: the
    number of steps of a fragment does not change what is compiled.
    """

    reproducibility = Reproducibility.EPISODE
    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        env: FunctionalEnv,
        env_indices: range,
        seed: int,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        jax.devices()  # XLA starts its threads here, as many as `library_threads` says.
        self._seed, self._env_indices = _checked("seed", seed, 0), env_indices
        set_spaces(self, len(env_indices), *checked_spaces(env, observation_space, action_space))
        self._leaves = leaves(self.single_observation_space)
        limit = None if max_episode_steps is None else _checked("max_episode_steps", max_episode_steps, 1)
        self._task = scan.Task(env, limit)
        self._carry: scan.Carry | None = None
        self._num_computed = scan.padded(self.num_envs)
        row_nbytes = self._num_computed * (sum(leaf.nbytes for leaf in self._leaves) + 8)
        self.chunk = 2 ** int(math.log2(min(MOST_STEPS, max(1, CHUNK_NBYTES // row_nbytes))))

    def compile_steps(self, has_observations: bool) -> None:
        """Compile what `reset` and `step` call, and `rollout` with or without observations; change no env."""
        env_keys = scan.keys_of_envs(self._seed, self._env_indices)
        carry = scan.begin(self._task, env_keys, np.zeros(self._num_computed, np.uint32))
        shape, space = (self.chunk, self._num_computed), self.single_action_space
        actions = tree_of(space, [np.zeros(shape + leaf.shape, leaf.dtype) for leaf in leaves(space)])
        scan.advance(self._task, env_keys, carry, actions, np.int32(0), has_observations)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin episodes: episode 0 of each env at first and whenever there is a seed, else each env's next one.

        Parameters
        ----------
        seed
            The new seed, for all envs: env i has its own random numbers by its index.
        options
            "reset_mask", (num_envs,) bool: reset these envs only; not together with a seed.
            "episodes", (num_envs,) int64: begin these episodes, to take them again.

        Returns
        -------
        The observations of all envs, and no infos.
        """
        options = options or {}
        mask = options.get("reset_mask")
        if mask is not None and (self._carry is None or seed is not None):
            raise ResetNeeded("reset all envs, and then some of them without a seed")
        if seed is not None:
            self._seed, self._carry = _checked("seed", seed, 0), None
        if self._carry is None:
            self._env_keys = scan.keys_of_envs(self._seed, self._env_indices)
            episodes = np.zeros(self._num_computed, np.uint32)
            self._carry = scan.begin(self._task, self._env_keys, episodes)
        else:
            episodes = self._carry.episodes + 1
            if "episodes" in options:
                episodes = np.zeros(self._num_computed, np.uint32)
                episodes[: self.num_envs] = options["episodes"]
            fresh = scan.begin(self._task, self._env_keys, episodes)
            chosen = np.ones(self._num_computed, np.bool_)
            chosen[: self.num_envs] = True if mask is None else mask
            self._carry = scan.merge(chosen, fresh, self._carry)
        return self.last_observations(), {}

    def step(self, actions: Tree) -> Step:
        """Take one step; the actions of envs that begin an episode are not used."""
        given = jax.tree.map(lambda array: np.asarray(array)[np.newaxis], actions)
        outcome = jax.device_get(self._advance(self._checked(given), 1, True))
        observations, rewards, terminations, truncations = jax.tree.map(
            lambda array: array[0, : self.num_envs], outcome
        )
        results = rewards.astype(np.float64), terminations.copy(), truncations.copy()
        return self._of_space(observations), *results, {}

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps with actions (num_steps, num_envs, ...); see `mpi_rollout.envs.rollout.Rollout`.

        While the host copies the outcome of a chunk, JAX computes the next one.
        """
        actions = self._checked(np.asarray(actions))
        wanted = self._wanted(columns, len(actions))
        before: tuple[slice, Any] | None = None
        for start in range(0, len(actions), self.chunk):
            part = actions[start : start + self.chunk]
            outcome = self._advance(part, len(part), "observations" in wanted)
            if before is not None:
                _bring(*before, wanted)
            before = slice(start, start + len(part)), outcome
        if before is not None:
            _bring(*before, wanted)

    def last_observations(self) -> Tree:
        """Return the observations (num_envs, ...) that the last step or reset has led to, in a new array."""
        if self._carry is None:
            raise ResetNeeded("reset the envs before their first step")
        observations = jax.device_get(self._carry.observations)
        return self._of_space(jax.tree.map(lambda array: array[: self.num_envs], observations))

    @property
    def episodes(self) -> np.ndarray:
        """The numbers (num_envs,) int64 of the episodes that the envs are in."""
        if self._carry is None:
            raise ResetNeeded("reset the envs before their first step")
        return np.array(self._carry.episodes[: self.num_envs], np.int64)

    def _advance(self, actions: Tree, num_steps: int, has_observations: bool) -> scan.Outcome:
        """Take up to `chunk` steps; the arrays that come back may not be there yet."""
        assert self._carry is not None, "checked with the actions"
        padded = jax.tree.map(self._padded, actions)
        self._carry, outcome = scan.advance(
            self._task, self._env_keys, self._carry, padded, np.int32(num_steps), has_observations
        )
        return outcome

    def _padded(self, array: np.ndarray) -> np.ndarray:
        """Fill up the steps of a chunk and the envs of a batch."""
        if array.shape[:2] == (self.chunk, self._num_computed):
            return array
        filled = np.zeros((self.chunk, self._num_computed, *array.shape[2:]), array.dtype)
        filled[: len(array), : self.num_envs] = array
        return filled

    def _of_space(self, observations: Tree) -> Tree:
        """Give observations the dtypes of their spaces, in new arrays."""
        arrays = [np.array(leaf.of(observations), leaf.dtype) for leaf in self._leaves]
        return tree_of(self.single_observation_space, arrays)

    def _checked(self, actions: Tree) -> Tree:
        """Return actions (num_steps, num_envs, ...), or raise before any env has taken a step."""
        if self._carry is None:
            raise ResetNeeded("reset the envs before their first step")
        for leaf in leaves(self.single_action_space):
            array = leaf.of(actions)
            if array.shape[1:] != (self.num_envs, *leaf.shape):
                shape = ", ".join(map(str, ("num_steps", self.num_envs, *leaf.shape)))
                raise ActionError(f"actions must have the shape ({shape}), got {array.shape}")
        space = self.single_action_space
        if isinstance(space, spaces.Discrete):  # Where JAX looks up what is not there, it takes something else.
            wrong = (actions < space.start) | (actions >= space.start + space.n)
            if wrong.any():
                row, env = np.argwhere(wrong)[0]
                place = f"env {self._env_indices[env]}" + (f" in row {row}" if len(actions) > 1 else "")
                raise ActionError(f"the action of {place} must be in {space}, got {actions[row, env]}")
        return actions

    def _wanted(self, columns: RolloutColumns, num_steps: int) -> dict[str, np.ndarray]:
        """Return the columns that somebody reads, or raise ValueError."""
        (leaf,) = self._leaves
        kinds = {"observations": (leaf.shape, (leaf.dtype,)), "rewards": ((), (np.float64, np.float32))}
        wanted = {name: getattr(columns, name) for name in ("observations", *RESULTS)}
        wanted = {name: array for name, array in wanted.items() if array is not None}
        for name, array in wanted.items():
            shape, dtypes = kinds.get(name, ((), (np.bool_,)))
            if array.shape[1:] != (self.num_envs, *shape) or len(array) < num_steps or array.dtype not in dtypes:
                expected = f"at least {num_steps} rows of {(self.num_envs, *shape)} of {np.dtype(dtypes[0])}"
                raise ValueError(f"the column {name} must have {expected}, got {array.shape} of {array.dtype}")
        return wanted


def _bring(rows: slice, outcome: scan.Outcome, wanted: dict[str, np.ndarray]) -> None:
    """Wait for the outcome of a chunk, and copy it into these rows of the columns."""
    host = jax.device_get({name: getattr(outcome, name) for name in wanted})
    for name, column in wanted.items():
        column[rows] = host[name][: rows.stop - rows.start, : column.shape[1]]


def _checked(name: str, number: object, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < least:
        raise UsageError(f"the {name} of JAX envs must be an integer from {least} on, got {number!r}")
    return int(number)
