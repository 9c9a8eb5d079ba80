"""Functional envs as the backend of a slice: NumPy outside, JAX inside."""

import math
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Space, Tree, leaves, tree_of
from mpi_rollout.envs.jax_slices import FunctionalEnv, scan
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.envs.slice_env import SliceVectorEnv, checked_integer
from mpi_rollout.errors import UsageError

CHUNK_NBYTES = 2**22  # The most that one compiled call gives: it stays in the cache.
MOST_STEPS = 64  # The most steps of one compiled call.
NAMES = ("observations", "rewards", "terminations", "truncations")


def make_envs(
    env: FunctionalEnv,
    env_indices: range,
    seed: int,
    observation_space: Space | None,
    action_space: Space | None,
    max_episode_steps: int | None,
) -> SliceVectorEnv:
    """Make the envs of `mpi_rollout.envs.jax_slices.jax_slice`, which describes the arguments."""
    jax.devices()  # XLA starts its threads here, as many as `library_threads` says.
    both_spaces = checked_spaces(env, observation_space, action_space)
    if max_episode_steps is not None:
        checked_integer(JAXBackend.name, "max_episode_steps", max_episode_steps, 1, math.inf)
    backend = JAXBackend(scan.Task(env, max_episode_steps), env_indices, *both_spaces)
    return SliceVectorEnv(backend, env_indices, seed, *both_spaces)


class JAXBackend:
    """A `slice_env.Backend`.

    All steps go through one compiled loop of up to `chunk` steps: the number of steps of a fragment does not change
    what is compiled.
    """

    name, most_seed, takes_uint8 = "JAX envs", math.inf, False
    _carry: scan.Carry

    def __init__(self, task: scan.Task, env_indices: range, observation_space: Space, action_space: Space) -> None:
        self._task, self._env_indices, self._num_envs = task, env_indices, len(env_indices)
        self._observation_space, self._action_space = observation_space, action_space
        self._leaves, self._num_computed = leaves(observation_space), scan.padded(self._num_envs)
        row_nbytes = self._num_computed * (sum(leaf.nbytes for leaf in self._leaves) + 8)
        self.chunk = 2 ** int(math.log2(min(MOST_STEPS, max(1, CHUNK_NBYTES // row_nbytes))))

    def compile_steps(self, has_observations: bool) -> None:
        env_keys = scan.keys_of_envs(0, self._env_indices)
        carry = scan.begin(self._task, env_keys, np.zeros(self._num_computed, np.uint32))
        shape, space = (self.chunk, self._num_computed), self._action_space
        actions = tree_of(space, [np.zeros(shape + leaf.shape, leaf.dtype) for leaf in leaves(space)])
        scan.advance(self._task, env_keys, carry, actions, np.int32(0), has_observations)

    def begin(self, seed: int, chosen: np.ndarray, episodes: np.ndarray) -> None:
        self._env_keys = scan.keys_of_envs(seed, self._env_indices)
        fresh = scan.begin(self._task, self._env_keys, self._filled(episodes.astype(np.uint32)))
        self._carry = fresh if chosen.all() else scan.merge(self._filled(chosen), fresh, self._carry)

    def _filled(self, array: np.ndarray) -> np.ndarray:
        """Fill up the envs of a batch."""
        return np.pad(array, (0, self._num_computed - self._num_envs))

    def rollout(self, actions: Tree, columns: RolloutColumns) -> None:
        """Take steps.  While the host copies the outcome of a chunk, JAX computes the next one."""
        wanted = {name: array for name in NAMES if (array := getattr(columns, name)) is not None}
        num_steps = len(jax.tree.leaves(actions)[0])
        before: tuple[slice, Any] | None = None
        for start in range(0, num_steps, self.chunk):
            rows = slice(start, min(start + self.chunk, num_steps))
            part = jax.tree.map(lambda array, rows=rows: self._padded(array[rows]), actions)
            self._carry, outcome = scan.advance(
                self._task, self._env_keys, self._carry, part, np.int32(rows.stop - start), "observations" in wanted
            )
            if before is not None:
                self._bring(*before, wanted)
            before = rows, outcome
        if before is not None:
            self._bring(*before, wanted)

    def _padded(self, array: np.ndarray) -> np.ndarray:
        """Fill up the steps of a chunk and the envs of a batch."""
        if array.shape[:2] == (self.chunk, self._num_computed):
            return array
        filled = np.zeros((self.chunk, self._num_computed, *array.shape[2:]), array.dtype)
        filled[: len(array), : self._num_envs] = array
        return filled

    def _bring(self, rows: slice, outcome: scan.Outcome, wanted: dict[str, Tree]) -> None:
        """Wait for the outcome of a chunk, and copy it into these rows of the columns."""
        host = jax.device_get({name: getattr(outcome, name) for name in wanted})
        for name, tree in wanted.items():
            for leaf in self._leaves if name == "observations" else [None]:
                column, array = (tree, host[name]) if leaf is None else (leaf.of(tree), leaf.of(host[name]))
                column[rows] = array[: rows.stop - rows.start, : self._num_envs]

    def observations(self) -> Tree:
        """Return observations of the dtypes of their spaces."""
        host = jax.device_get(self._carry.observations)
        arrays = [np.array(leaf.of(host)[: self._num_envs], leaf.dtype) for leaf in self._leaves]
        return tree_of(self._observation_space, arrays)

    def episodes(self) -> np.ndarray:
        return np.array(self._carry.episodes[: self._num_envs], np.int64)


def checked_spaces(env: FunctionalEnv, observation_space: Space | None, action_space: Space | None) -> tuple[Any, Any]:
    """Return the observation space and the action space of a functional env, or raise UsageError.

    Nothing is computed: JAX tells the shapes and dtypes of what the env gives.
    """
    name = type(env).__name__
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    observation, state = jax.eval_shape(env.reset, key)
    action_space = action_space or getattr(env, "action_space", None)
    if not isinstance(action_space, spaces.Space):
        raise UsageError(f"JAX env {name} needs an action_space of Gymnasium, got {action_space!r}")
    observation_space = observation_space or getattr(env, "observation_space", None)
    if not isinstance(observation_space, spaces.Space):
        observation_space = _unbounded(name, observation)
    actions = tree_of(action_space, [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves(action_space)])
    observation_after, state_after, reward, done, _ = jax.eval_shape(env.step, key, state, actions)
    for what, first, second in (("state", state, state_after), ("observation", observation, observation_after)):
        _check_same(name, what, first, second)
    for what, array in (("reward", reward), ("done", done)):
        if array.shape:
            raise UsageError(f"the {what} of JAX env {name} must be one number, got shape {array.shape}")
    _check_observation(name, observation_space, observation)
    return observation_space, action_space


def _unbounded(name: str, observation: Any) -> Space:
    if isinstance(observation, dict):
        return spaces.Dict({key: _unbounded(name, part) for key, part in observation.items()})
    if not hasattr(observation, "shape"):
        raise UsageError(f"JAX env {name} needs an observation_space of Gymnasium")
    dtype = np.dtype(observation.dtype)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, observation.shape, dtype)
    low, high = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, observation.shape, np.int8 if dtype == np.bool_ else dtype)


def _check_same(name: str, what: str, first: Any, second: Any) -> None:
    """Refuse what step returns in other shapes than reset: a compiled loop needs the same."""
    places, more = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (first, second))
    if jax.tree.structure(first) != jax.tree.structure(second):
        raise UsageError(f"the {what} that step of JAX env {name} returns is nested otherwise than that of reset")
    for (path, before), (_, after) in zip(places, more, strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            expected = f"{before.dtype} of shape {before.shape} as reset does"
            place = jax.tree_util.keystr(path)
            got = f"{after.dtype} of shape {after.shape}"
            raise UsageError(f"step of JAX env {name} must return {what}{place} as {expected}, got {got}")


def _check_observation(name: str, space: Space, observation: Any) -> None:
    for leaf in leaves(space):
        try:
            shape = leaf.of(observation).shape
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise UsageError(f"the observation of JAX env {name} is not nested as its space {space}") from error
        if shape != leaf.shape:
            at = f" {leaf.path}" if leaf.path else ""
            raise UsageError(f"the observation{at} of JAX env {name} must have shape {leaf.shape}, got {shape}")
