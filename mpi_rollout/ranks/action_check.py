"""The check of actions: they are read and checked once, where they enter; afterwards they are trusted.

Their shape and the kind of their dtype must be right.  What happens to values outside of their space depends on the
mode.  In no mode does an integer outside of its range reach an env: code in C++ would use it as an address.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Leaf, Tree, bounds_of, is_castable, leaf_spaces, leaves, rounding, tree_of
from mpi_rollout.errors import ActionError, words_of

EnvIndices = Sequence[int] | np.ndarray


class ActionReader:
    """A reader of batches of actions.

    Parameters
    ----------
    mode
        "check": a float outside of its bounds by rounding alone is set to the bound; other values outside are refused.
        "clip": values outside are set to the bound; NaN is refused.
        "pass": floats stay as they are; integers outside are refused.
    """

    def __init__(self, single_space: spaces.Space, mode: str = "check"):
        self._space = single_space
        self._columns = [
            (leaf, _is_accepted(space, mode), partial(TREATMENTS[mode], leaf, *bounds_of(space)))
            for leaf, space in zip(leaves(single_space), leaf_spaces(single_space), strict=True)
        ]

    def __call__(self, actions: object, env_indices: EnvIndices) -> list[np.ndarray]:
        """Return an array of shape (len(env_indices), ...) for each leaf.

        Parameters
        ----------
        actions
            An array, or a tree of arrays; for Dict and Tuple spaces also a list with a sample for each env.

        Raises
        ------
        ActionError
            The actions for these envs cannot be read, or are refused.
        """
        arrays = []
        take = self._take_from(actions, len(env_indices))
        for leaf, is_accepted, treat in self._columns:
            array, shape = self._array(leaf, take, actions), (len(env_indices), *leaf.shape)
            if array.shape != shape or not is_castable(array.dtype, leaf.dtype):
                raise ActionError(
                    f"the policy's {_name(leaf)} must be {leaf.dtype} of shape {shape}, "
                    f"got {array.dtype} of shape {array.shape}"
                )
            if leaf.dtype.kind == "f":  # As it will be sent: float64's 0.7 is above a float32 bound of 0.7.
                array = array.astype(leaf.dtype, copy=False)
            arrays.append(array if is_accepted(array) else treat(array, env_indices))
        return arrays

    def plan(self, actions: object, env_indices: EnvIndices, step: int) -> list[np.ndarray] | None:
        """Read the actions of several steps; None if they are of one step.

        Parameters
        ----------
        actions
            For several steps of shape (num_steps, len(env_indices), ...), or a tree of such arrays.
        step
            The first of them, for messages.

        Returns
        -------
        For each leaf an array (num_steps, len(env_indices), ...).

        Raises
        ------
        ActionError
            They are refused; the message names the step.
        """
        if isinstance(actions, np.ndarray) and actions.ndim <= len(self._columns[0][0].shape) + 1:
            return None  # Told soon: a policy that gives one step at a time is asked in each.
        try:
            pairs = [(leaf, leaf.of(actions)) for leaf, *_ in self._columns]
            dimensions = {array.ndim - len(leaf.shape) for leaf, array in pairs}
            sizes = {array.shape[:2] for _, array in pairs}
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
        num_steps, num_envs = next(iter(sizes)) if dimensions == {2} and len(sizes) == 1 else (0, 0)
        if num_envs != len(env_indices) or not num_steps:
            return None
        flat = [np.asarray(array).reshape(-1, *array.shape[2:]) for _, array in pairs]
        try:  # All at once.
            arrays = self(tree_of(self._space, flat), np.tile(env_indices, num_steps))
        except ActionError:
            self._refuse_first(pairs, env_indices, step)
            raise
        shapes = [(num_steps, num_envs, *leaf.shape) for leaf, _ in pairs]
        columns = zip(pairs, arrays, shapes, strict=True)
        return [array.astype(leaf.dtype, copy=False).reshape(shape) for (leaf, _), array, shape in columns]

    def _refuse_first(self, pairs: list[tuple[Leaf, Any]], env_indices: EnvIndices, step: int) -> None:
        """Raise the ActionError of the first step of several that has one, with its number."""
        for index in range(len(pairs[0][1])):
            try:
                self(tree_of(self._space, [array[index] for _, array in pairs]), env_indices)
            except ActionError as error:
                raise ActionError(f"step {step + index}: {error}") from error

    def _take_from(self, actions: object, num_envs: int) -> Callable[[Leaf, Tree], object]:
        """Return what takes a leaf out of the actions.  A tuple that Gymnasium can read as batches is batches."""
        if isinstance(actions, list | tuple):
            if isinstance(self._space, spaces.Dict):
                return _of_each
            if isinstance(self._space, spaces.Tuple) and len(self._space.spaces) != len(actions) == num_envs:
                return _of_each
        return Leaf.of

    @staticmethod
    def _array(leaf: Leaf, take: Callable[[Leaf, Tree], object], actions: object) -> np.ndarray:
        try:
            return np.asarray(take(leaf, actions))
        except (TypeError, ValueError, LookupError) as error:
            raise ActionError(f"the policy's {_name(leaf)} cannot be read: {words_of(error)}") from error


def _of_each(leaf: Leaf, samples: Sequence[object]) -> list[object]:
    return [leaf.of(sample) for sample in samples]


def _name(leaf: Leaf) -> str:
    return f"action {leaf.path!r}" if leaf.path else "action"


def _is_accepted(space: spaces.Space, mode: str) -> Callable[[np.ndarray], bool]:
    """Return a function that tells whether an array needs no treatment."""
    if mode == "pass" and np.dtype(space.dtype).kind == "f":
        return lambda array: True
    return inside(space)


def inside(space: spaces.Space) -> Callable[[np.ndarray], bool]:
    """Return a function that tells whether low <= array <= high everywhere, in as few passes as the bounds allow.

    It runs between the slots of one step and the order of the next, while every rank waits.
    """
    low, high = bounds_of(space)
    if low.size == 0:
        return lambda array: True
    lowest, highest = low.flat[0].item(), high.flat[0].item()
    if (low != lowest).any() or (high != highest).any():
        return lambda array: bool(((array >= low) & (array <= high)).all())
    # Where there is NaN, it is the minimum and the maximum, and compares as false.
    return lambda array: array.min().item() >= lowest and array.max().item() <= highest


def _clip(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    clipped = _nearest(leaf, low, high, array)
    if not (clipped == clipped).all():
        raise _outside(leaf, clipped, low, high, env_indices)
    return clipped


def _round(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    nearest = _nearest(leaf, low, high, array)
    is_close = nearest == array
    if leaf.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # Infinity is not close to infinity, but equal.
            is_close |= np.abs(nearest - array) <= rounding(low, high, leaf.dtype)
    if not is_close.all():
        raise _outside(leaf, np.where(is_close, nearest, array), low, high, env_indices)
    return nearest


def _refuse(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    raise _outside(leaf, array, low, high, env_indices)


TREATMENTS = {"check": _round, "clip": _clip, "pass": _refuse}  # Of an array that is not inside.


def _nearest(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Return the nearest values within the bounds.  NaN stays, and no comparison depends on a cast."""
    return np.where(array < low, low, np.where(array > high, high, array.astype(leaf.dtype))).astype(leaf.dtype)


def _outside(leaf: Leaf, array: np.ndarray, low: np.ndarray, high: np.ndarray, env_indices: EnvIndices) -> ActionError:
    place = tuple(int(i) for i in np.argwhere(~((array >= low) & (array <= high)))[0])
    lowest, highest = (np.broadcast_to(bound, array.shape)[place] for bound in (low, high))
    component = f", component {list(place[1:])}" if place[1:] else ""
    return ActionError(
        f"the policy's {_name(leaf)} for env {env_indices[place[0]]}{component} must be in {lowest} to {highest}, "
        f"got {array[place]}; {_way_out(leaf, array[place])}"
    )


def _way_out(leaf: Leaf, value: np.generic) -> str:
    if value != value:
        return "correct the policy"
    if leaf.dtype.kind == "f":
        return 'clip it in the policy or by gymnasium.wrappers.ClipAction, or set actions to "clip" or "pass"'
    return 'clip it in the policy, or set actions to "clip"'
