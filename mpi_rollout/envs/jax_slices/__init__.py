"""Functional envs in JAX as natively vectorized envs: of one's own, of gymnax and of brax.

The functions are what `--env-factory` names.  JAX is imported when envs are made.
"""

from collections.abc import Hashable
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import first_line, pip_install

INSTALLS = {"jax": "[jax]", "gymnax": "gymnax six", "brax": "brax"}
# JAX is not imported here.
Key: TypeAlias = Any  # A key of `jax.random`.
State: TypeAlias = Any  # A tree of arrays.
Array: TypeAlias = Any  # Or arrays in dicts and tuples.
Infos = dict[str, Array]
Kwargs = tuple[tuple[str, Hashable], ...]


class FunctionalEnv(Protocol):
    """One env as two pure functions, which JAX can compile and map over many envs.

    The observation is as the observation space nests it: an array, or dicts and tuples of arrays.  The state is any
    tree of arrays; those that `step` returns have the shapes and dtypes of those that `reset` returns.
    """

    def reset(self, key: Key) -> tuple[Array, State]:
        """Return the first observation and the state of an episode."""

    def step(self, key: Key, state: State, action: Array) -> tuple[Array, State, Array, Array, Infos]:
        """Return the observation, the next state, the reward, whether the episode is over, and infos.

        Where a time limit of its own may end an episode, the info "truncated" tells that.  An episode that is over
        and not truncated is terminated, unless the info "terminated" says more: an episode may be both.  Other infos
        are not used.  The env does not reset by itself.
        """


class GymnaxEnv:
    """An env of gymnax with its parameters, without its own automatic reset."""

    def __init__(self, env: Any, params: Any) -> None:
        from gymnax.environments.spaces import gymnax_space_to_gym_space

        self._env, self._params = env, params
        self.observation_space = gymnax_space_to_gym_space(env.observation_space(params))
        self.action_space = gymnax_space_to_gym_space(env.action_space(params))

    def reset(self, key: Key) -> tuple[Array, State]:
        return self._env.reset_env(key, self._params)

    def step(self, key: Key, state: State, action: Array) -> tuple[Array, State, Array, Array, Infos]:
        observation, after, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(after, self._params)
        return observation, after, reward, terminated | truncated, {"terminated": terminated, "truncated": truncated}


class BraxEnv:
    """An env of brax, or one with the same functions, such as MuJoCo Playground's: `reset(key)`, `step(state, action)`.

    It must be one without wrappers that reset or end episodes.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.action_space = spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)

    def reset(self, key: Key) -> tuple[Array, State]:
        state = self._env.reset(key)
        return state.obs, state

    def step(self, key: Key, state: State, action: Array) -> tuple[Array, State, Array, Array, Infos]:
        after = self._env.step(state, action)
        return after.obs, after, after.reward, after.done, {}


def jax_slice(
    env: FunctionalEnv,
    env_indices: range,
    seed: int,
    *,
    observation_space: spaces.Space | None = None,
    action_space: spaces.Space | None = None,
    max_episode_steps: int | None = None,
) -> VectorEnv:
    """Return the envs with these indices of a functional env, compiled by JAX.

    They reset in the next step, and their data depend on (seed, env index, episode, actions) only.  Random numbers of
    episode e of env i come from `episode_key = fold_in(fold_in(key(seed), i), e)`: the reset gets
    `fold_in(episode_key, 0)` and step t = 1, 2, ... `fold_in(episode_key, t)`.

    Parameters
    ----------
    env
        Code that was compiled for it is used again for the same object.
    env_indices
        The indices of these envs among all envs of a job.
    observation_space, action_space
        Gymnasium's, of one env; by default those that `env` has.  Without an observation space, it is a Box without
        bounds.
    max_episode_steps
        An episode is truncated in this step.

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
    params: dict[str, Hashable] | None = None,
    max_episode_steps: int | None = None,
    **kwargs: Hashable,
) -> VectorEnv:
    """Return envs of gymnax, such as "CartPole-v1" or "Breakout-MinAtar"; `kwargs` are for the task's class.

    `params` are those that are not the task's default ones.  An episode that gymnax ends by its own limit
    (`params.max_steps_in_episode`) is truncated; `max_episode_steps` is a further limit.
    """
    env = _gymnax_env(task, _frozen(params or {}), _frozen(kwargs))
    return jax_slice(env, env_indices, seed, max_episode_steps=max_episode_steps)


def brax(
    env_indices: range, seed: int, task: str, max_episode_steps: int | None = 1000, **kwargs: Hashable
) -> VectorEnv:
    """Return envs of brax, such as "inverted_pendulum"; `kwargs` are for the task's class (`backend="spring"`).

    The default time limit is that of brax's own training.
    """
    return jax_slice(_brax_env(task, _frozen(kwargs)), env_indices, seed, max_episode_steps=max_episode_steps)


def _frozen(kwargs: dict[str, Hashable]) -> Kwargs:
    try:
        hash(tuple(kwargs.values()))
    except TypeError as error:
        raise UsageError(f"arguments of JAX envs must be numbers, texts or booleans, got {kwargs}") from error
    return tuple(sorted(kwargs.items()))


@lru_cache(maxsize=16)  # The same object again, for whose sake nothing is compiled again.
def _gymnax_env(task: str, params: Kwargs, kwargs: Kwargs) -> FunctionalEnv:
    _imported("jax", "jax")
    library = _imported("gymnax", "gymnax")
    _check_task("gymnax", task, list(library.registered_envs))
    if not hasattr(library.environments.environment.Environment, "is_truncated"):
        raise UsageError("envs of gymnax before 1.0 do not tell time limits from other ends; pip install -U gymnax")
    try:
        env, default = library.make(task, **dict(kwargs))
        return GymnaxEnv(env, default.replace(**dict(params)))
    except TypeError as error:
        what = f" {dict(params + kwargs)} do not fit {task} of gymnax: {first_line(error)}"
        raise UsageError(Option("env_kwargs"), what) from error


@lru_cache(maxsize=16)
def _brax_env(task: str, kwargs: Kwargs) -> FunctionalEnv:
    _imported("jax", "jax")
    library = _imported("brax.envs", "brax")
    _check_task("brax", task, list(library._envs))  # There is no public list.
    try:
        return BraxEnv(library.get_environment(task, **dict(kwargs)))
    except (TypeError, ValueError, AssertionError) as error:
        what = f" {dict(kwargs)} do not fit {task} of brax: {first_line(error)}"
        raise UsageError(Option("env_kwargs"), what) from error


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        needed = f"JAX envs need a package ({first_line(error)})"
        raise UsageError(f"{needed}; {pip_install(INSTALLS[package])}") from error


def _check_task(library: str, task: str, known: list[str]) -> None:
    if task in known:
        return
    near = get_close_matches(str(task), known, 3) or sorted(known)
    raise UsageError(Option("env_kwargs"), f": {library} has no task {task!r}; there are {', '.join(near)}")
