"""EnvPool: envs in C++, a pool of them for the envs of a rank.

Seen with EnvPool 1.2.5: its seeds are fixed when a pool is made, and each env of a list of seeds gives the same bytes
in any pool.  Its spaces are those of a single env.  Some observations have another dtype than their space.  It aborts
the process for a wrong number of actions, and takes actions outside of their space; the root checks them before.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Leaf, Tree, leaves, set_spaces, tree_of
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.errors import Option, UsageError, first_line


class PoolVectorEnv(VectorEnv):
    """A pool as a Gymnasium vector env.

    Parameters
    ----------
    pool
        What `envpool.make_gymnasium` returned.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.metadata, self.spec, self.render_mode = pool.metadata, None, None
        set_spaces(self, pool.num_envs, pool.observation_space, pool.action_space)
        self._leaves = leaves(self.single_observation_space)
        self._is_to_cast = True

    def reset(self, *, seed: object = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin episodes; the seeds are those of the pool."""
        observations, infos = self._pool.reset()
        self._is_to_cast = any(leaf.of(observations).dtype != leaf.dtype for leaf in self._leaves)
        return self._cast(observations), infos

    def step(self, actions: Tree) -> Step:
        observations, *results, infos = self._pool.step(actions)
        return self._cast(observations), *results, infos

    def _cast(self, observations: Tree) -> Tree:
        """Give observations the dtypes of their spaces."""
        if not self._is_to_cast:
            return observations
        arrays = [_of_dtype(leaf, observations) for leaf in self._leaves]
        return tree_of(self.single_observation_space, arrays)

    def close(self, **_kwargs: Any) -> None:
        self._pool.close()


def _of_dtype(leaf: Leaf, observations: Tree) -> np.ndarray:
    return np.asarray(leaf.of(observations)).astype(leaf.dtype, copy=False)


def make_pool(task: str, kwargs: Mapping[str, Any], seeds: list[int], num_threads: int) -> PoolVectorEnv:
    """Make a pool of an env for each seed of 31 bits.

    Raises
    ------
    UsageError
        EnvPool is missing, does not know the task or an argument, or has several players in an env.
    """
    try:
        import envpool
    except ImportError as error:
        raise UsageError(
            Option("vectorization_mode"), f" envpool: {first_line(error)}; pip install 'mpi_rollout[envpool]'"
        ) from error
    known = envpool.list_all_envs()
    if task not in known:
        raise UsageError(Option("env"), f" {task}: EnvPool has no such task{_near(task, known)}")
    options = {"num_threads": num_threads} | dict(kwargs)
    try:
        pool = envpool.make_gymnasium(task, num_envs=len(seeds), seed=seeds, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        what = f" {dict(kwargs)} do not fit {task} of EnvPool: {first_line(error)}"
        raise UsageError(Option("env_kwargs"), what) from error
    num_players = pool.spec.config.max_num_players
    if num_players > 1:
        what = f" {task} has up to {num_players} players; envs of several agents cannot be stepped yet"
        raise UsageError(Option("env"), what)
    return PoolVectorEnv(pool)


def _near(task: str, known: list[str]) -> str:
    near = get_close_matches(task, known, 3)
    bare = task.rpartition("/")[2]  # ALE/Pong-v5 is Pong-v5 there.
    near = [bare] if bare in known else near
    return f"; near it are {', '.join(near)}" if near else "; `envpool.list_all_envs()` has all"
