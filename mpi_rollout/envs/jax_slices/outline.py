"""What a functional env gives, without a step: shapes and dtypes; and the spaces that fit them."""

from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Space, leaves, tree_of
from mpi_rollout.envs.jax_slices.functional import FunctionalEnv
from mpi_rollout.errors import UsageError


def checked_spaces(env: FunctionalEnv, observation_space: Space | None, action_space: Space | None) -> tuple[Any, Any]:
    """Return the observation space and the action space of a functional env.

    Raises
    ------
    UsageError
        A space is missing, or what the env gives does not fit them.
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
