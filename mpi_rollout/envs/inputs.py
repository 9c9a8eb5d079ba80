"""What the envs of a loop are given: one action each, one seed each, and which of them to reset."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate


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


def take_reset_mask(
    options: dict[str, Any] | None, num_envs: int, mode: AutoresetMode
) -> tuple[np.ndarray | None, dict[str, Any] | None]:
    """Part `reset_mask` from the other options of `reset`, which are for the envs; the caller's dict stays as it is.

    A mask without a True is let pass: it may be a slice of a larger one.

    Raises
    ------
    TypeError, ValueError
        It is no mask of `num_envs`, or envs are reset without it.
    """
    if options is None or "reset_mask" not in options:
        return None, options
    mask, name = options["reset_mask"], "options['reset_mask']"
    if mode is not AutoresetMode.DISABLED:
        raise ValueError(
            f"{name} needs autoreset_mode DISABLED, got {mode.name}, which resets envs by itself; "
            "leave it out, or make the envs with AutoresetMode.DISABLED"
        )
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask).__name__}; use np.array(mask, dtype=np.bool_)")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape ({num_envs},), one for each env, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have dtype bool, got {mask.dtype}; use mask.astype(np.bool_)")
    return mask, {key: value for key, value in options.items() if key != "reset_mask"}
