"""Functional envs as the backend of a slice: NumPy outside, JAX inside."""

import math
from typing import Any

import jax
import numpy as np

from mpi_rollout.core.spaces import Space, Tree, leaves, tree_of
from mpi_rollout.envs.jax_slices import scan
from mpi_rollout.envs.jax_slices.functional import FunctionalEnv
from mpi_rollout.envs.jax_slices.outline import checked_spaces
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.envs.slice_env import SliceVectorEnv, checked_integer

CHUNK_NBYTES = 2**22  # Of the outcome of one compiled call: it stays in the cache.
MOST_STEPS = 64  # In one compiled call.
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
    spaces = checked_spaces(env, observation_space, action_space)
    if max_episode_steps is not None:
        checked_integer(JAXBackend.name, "max_episode_steps", max_episode_steps, 1, math.inf)
    backend = JAXBackend(scan.Task(env, max_episode_steps), env_indices, *spaces)
    return SliceVectorEnv(backend, env_indices, seed, *spaces)


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
