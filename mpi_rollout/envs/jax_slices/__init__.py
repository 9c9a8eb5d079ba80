"""Functional envs in JAX as natively vectorized envs: of one's own, of gymnax and of brax.

The functions are what `--env-factory` names.  JAX is imported when envs are made.
"""

from functools import lru_cache
from importlib import import_module
from typing import Any

from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv

from mpi_rollout.envs.jax_slices.functional import FunctionalEnv
from mpi_rollout.errors import UsageError, first_line

INSTALLS = {"jax": "'mpi_rollout[jax]'", "gymnax": "gymnax six", "brax": "brax"}


def jax_slice(
    env: FunctionalEnv,
    env_indices: range,
    seed: int,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    max_episode_steps: int | None = None,
) -> VectorEnv:
    """Return the envs with these indices of a functional env, compiled by JAX.

    They reset in the next step, and their data depend on (seed, env index, episode, actions) only.  Random numbers of
    episode e of env i come from `episode_key = fold_in(fold_in(key(seed), i), e)`: the reset gets
    `fold_in(episode_key, 0)` and step t = 1, 2, ... `fold_in(episode_key, t)`.

    Parameters
    ----------
    env
        It has `reset(key)` and `step(key, state, action)`, see `functional.FunctionalEnv`.  Code that was compiled for
        an env is used again for the same object.
    env_indices
        The indices of these envs among all envs of a job.
    seed
        Of the run, from 0 on.
    observation_space, action_space
        Of one env, of Gymnasium; by default those that `env` has.  An env without an observation space gets a Box
        without bounds.
    max_episode_steps
        The time limit: an episode is truncated in this step.

    Raises
    ------
    UsageError
        JAX is missing, or the env is not what it should be.
    """
    make = _imported("mpi_rollout.envs.jax_slices.backend", "jax").make_envs
    envs: VectorEnv = make(env, env_indices, seed, observation_space, action_space, max_episode_steps)
    return envs


def gymnax(
    env_indices: range,
    seed: int,
    task: str,
    params: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
    **kwargs: Any,
) -> VectorEnv:
    """Return envs of gymnax, such as "CartPole-v1" or "Breakout-MinAtar".

    An episode that gymnax ends by its own limit (`params.max_steps_in_episode`) is truncated.

    Parameters
    ----------
    params
        Those that are not the task's default ones.
    max_episode_steps
        A further time limit.
    **kwargs
        Of the task's class.
    """
    env = _gymnax_env(task, _frozen(params or {}), _frozen(kwargs))
    return jax_slice(env, env_indices, seed, max_episode_steps=max_episode_steps)


def brax(env_indices: range, seed: int, task: str, max_episode_steps: int | None = 1000, **kwargs: Any) -> VectorEnv:
    """Return envs of brax, such as "inverted_pendulum" or "ant".

    Parameters
    ----------
    max_episode_steps
        The time limit, by default that of brax's own training.
    **kwargs
        Of the task's class, such as `backend="spring"`.
    """
    return jax_slice(_brax_env(task, _frozen(kwargs)), env_indices, seed, max_episode_steps=max_episode_steps)


def _frozen(kwargs: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    try:
        hash(tuple(kwargs.values()))
    except TypeError as error:
        raise UsageError(f"arguments of JAX envs must be numbers, texts or booleans, got {kwargs}") from error
    return tuple(sorted(kwargs.items()))


@lru_cache(maxsize=16)  # The same object again, for whose sake nothing is compiled again.
def _gymnax_env(task: str, params: tuple[tuple[str, Any], ...], kwargs: tuple[tuple[str, Any], ...]) -> FunctionalEnv:
    _imported("jax", "jax")
    return import_module("mpi_rollout.envs.jax_slices.libraries").gymnax_env(
        _imported("gymnax", "gymnax"), task, dict(params), dict(kwargs)
    )


@lru_cache(maxsize=16)
def _brax_env(task: str, kwargs: tuple[tuple[str, Any], ...]) -> FunctionalEnv:
    _imported("jax", "jax")
    return import_module("mpi_rollout.envs.jax_slices.libraries").brax_env(
        _imported("brax.envs", "brax"), task, dict(kwargs)
    )


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        needed = f"JAX envs need a package ({first_line(error)})"
        raise UsageError(f"{needed}; pip install {INSTALLS[package]}") from error
