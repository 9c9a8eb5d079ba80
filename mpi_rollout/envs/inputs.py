"""What the envs of a loop are given: one action each, one seed each, and which of them to reset."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from mpi_rollout.core.spaces import leaves
from mpi_rollout.errors import UsageError


def check_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Refuse spaces whose values cannot be batched.

    Raises
    ------
    UsageError
        A part has no fixed shape; observations have no parts; or actions have a Dict or Tuple without any, which
        Gymnasium cannot iterate over.
    """
    leaves(action_space)
    if not leaves(observation_space):
        raise UsageError(
            f"the observation space is an empty {type(observation_space).__name__}; give it a member with "
            "gymnasium.wrappers.TransformObservation"
        )
    waiting = [action_space]
    while waiting:
        part = waiting.pop()
        if isinstance(part, spaces.Dict | spaces.Tuple):
            if not len(part.spaces):
                raise UsageError(
                    f"the action space has an empty {type(part).__name__}, which cannot be batched; leave it out with "
                    f"gymnasium.wrappers.TransformAction; got {action_space}"
                )
            waiting += part.spaces.values() if isinstance(part, spaces.Dict) else part.spaces


def action_splitter(single_space: spaces.Space, space: spaces.Space) -> Callable[[Any], list[Any]]:
    """A function that makes of batched actions one per env.

    They are copies: an env may keep its action, and the caller's array is written again.
    """
    if isinstance(single_space, spaces.Discrete):
        return list
    if isinstance(single_space, spaces.Dict | spaces.Tuple):
        return lambda actions: [_copied(action) for action in iterate(space, actions)]
    return lambda actions: list(actions.copy())


def _copied(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _copied(value) for key, value in action.items()}
    if isinstance(action, tuple):
        return tuple(_copied(value) for value in action)
    return action.copy() if isinstance(action, np.ndarray) else action


def read_seed(seed: Any, num_envs: int) -> int | list[int | None] | None:
    """A trainer's seed or seeds, as integers of Python, which Gymnasium's generators ask for.

    Raises
    ------
    TypeError, ValueError
        They are no integers, are negative, or the list is not as long as there are envs.
    """
    if seed is None:
        return None
    if hasattr(seed, "__index__") and not np.ndim(seed):
        return _read_seed(seed)
    if not np.iterable(seed) or isinstance(seed, str):
        raise TypeError(f"seed must be a whole number, or a list with one for each of {num_envs} envs, got {seed!r}")
    seeds = [None if each is None else _read_seed(each) for each in seed]
    return list(seed_of_each(seeds, num_envs))


def _read_seed(seed: Any) -> int:
    try:
        seed = index(seed)
    except TypeError:
        raise TypeError(f"seed must be a whole number, got {seed!r}") from None
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    return seed


def seed_of_each(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    """The seeds that `reset` gives: none, counted on from one, or those of a list.

    Raises
    ------
    ValueError
        The list is not as long as there are envs.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int):
        return [seed + index for index in range(num_envs)]
    if len(seed) != num_envs:
        raise ValueError(f"seed must be an integer or a list with one for each of {num_envs} envs, got {len(seed)}")
    return seed


Options = dict[str, Any] | Sequence[dict[str, Any] | None] | None


def options_of_each(options: Options, num_envs: int) -> Sequence[dict[str, Any] | None]:
    """The options that `reset` gives: the same to all envs, or those of a list.

    Raises
    ------
    ValueError
        The list is not as long as there are envs.
    """
    if not isinstance(options, list | tuple):
        return [options] * num_envs
    if len(options) != num_envs:
        raise ValueError(f"options must be a dict or a list with one for each of {num_envs} envs, got {len(options)}")
    return options


def take_reset_mask(options: Options, num_envs: int) -> tuple[np.ndarray | None, Options]:
    """Part `reset_mask` from the other options of `reset`, which are for the envs; the caller's dict stays as it is.

    A mask without a True is let pass: it may be a slice of a larger one.

    Raises
    ------
    TypeError, ValueError
        It is no mask of `num_envs`.
    """
    if not isinstance(options, dict) or "reset_mask" not in options:
        return None, options
    mask, name = options["reset_mask"], "options['reset_mask']"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask).__name__}; use np.array(mask, dtype=np.bool_)")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape ({num_envs},), one for each env, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have dtype bool, got {mask.dtype}; use mask.astype(np.bool_)")
    return mask, {key: value for key, value in options.items() if key != "reset_mask"}
