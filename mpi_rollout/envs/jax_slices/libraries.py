"""Envs of gymnax and of brax as functional envs, with Gymnasium's spaces."""

from difflib import get_close_matches
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.envs.jax_slices.functional import Array, Key, State
from mpi_rollout.errors import Option, UsageError, first_line


class GymnaxEnv:
    """An env of gymnax with its parameters, without its own automatic reset."""

    def __init__(self, env: Any, params: Any) -> None:
        self._env, self._params = env, params
        self.observation_space = space_of_gymnax(env.observation_space(params))
        self.action_space = space_of_gymnax(env.action_space(params))

    def reset(self, key: Key) -> tuple[Any, State]:
        return self._env.reset_env(key, self._params)

    def step(self, key: Key, state: State, action: Any) -> tuple[Any, State, Array, Array, dict[str, Any]]:
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

    def reset(self, key: Key) -> tuple[Any, State]:
        state = self._env.reset(key)
        return state.obs, state

    def step(self, key: Key, state: State, action: Any) -> tuple[Any, State, Array, Array, dict[str, Any]]:
        after = self._env.step(state, action)
        return after.obs, after, after.reward, after.done, {}


def gymnax_env(library: Any, task: str, params: dict[str, Any], kwargs: dict[str, Any]) -> GymnaxEnv:
    """Make an env of gymnax, or raise UsageError."""
    _check_task("gymnax", task, list(library.registered_envs))
    if not hasattr(library.environments.environment.Environment, "is_truncated"):
        raise UsageError("envs of gymnax before 1.0 do not tell time limits from other ends; pip install -U gymnax")
    try:
        env, default = library.make(task, **kwargs)
        return GymnaxEnv(env, default.replace(**params))
    except TypeError as error:
        what = f" {params | kwargs} do not fit {task} of gymnax: {first_line(error)}"
        raise UsageError(Option("env_kwargs"), what) from error


def brax_env(library: Any, task: str, kwargs: dict[str, Any]) -> BraxEnv:
    """Make an env of brax, or raise UsageError."""
    _check_task("brax", task, list(library._envs))  # There is no public list.
    try:
        return BraxEnv(library.get_environment(task, **kwargs))
    except (TypeError, ValueError, AssertionError) as error:
        what = f" {kwargs} do not fit {task} of brax: {first_line(error)}"
        raise UsageError(Option("env_kwargs"), what) from error


def _check_task(library: str, task: str, known: list[str]) -> None:
    if task in known:
        return
    near = get_close_matches(str(task), known, 3) or sorted(known)
    raise UsageError(Option("env_kwargs"), f": {library} has no task {task!r}; there are {', '.join(near)}")


def space_of_gymnax(space: Any) -> spaces.Space:
    """Return Gymnasium's space for one of gymnax's."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "Box":
        shape, dtype = tuple(space.shape), np.dtype(space.dtype)
        low, high = (np.broadcast_to(np.asarray(bound, dtype), shape).copy() for bound in (space.low, space.high))
        return spaces.Box(low, high, shape, dtype)
    if kind == "Dict":
        return spaces.Dict({name: space_of_gymnax(part) for name, part in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([space_of_gymnax(part) for part in space.spaces])
    raise UsageError(f"spaces {kind} of gymnax are not known, got {space}")
