"""The check of actions: they are read and checked once, where they enter; afterwards they are trusted.

Their shape and the kind of their dtype must be right.  What happens to values outside of their space depends on the
mode.  In no mode does an integer outside of its range reach an env: code in C++ would use it as an address.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Leaf, Tree, bounds_of, is_castable, leaf_spaces, leaves, rounding, tree_of
from mpi_rollout.errors import ActionError
from mpi_rollout.text import words_of

EnvIndices = Sequence[int] | np.ndarray
UNSIGNED = {dtype.itemsize: dtype for dtype in map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64))}
OF_POLICY = "the policy's action"


class Column(NamedTuple):
    """A leaf of the actions: its bounds, and what messages call an action."""

    leaf: Leaf
    low: np.ndarray
    high: np.ndarray
    action: str
    takes_floats: bool = False

    @classmethod
    def of(cls, leaf: Leaf, space: spaces.Space, action: str) -> "Column":
        # Gymnasium's vector envs give a Box of integers what they get; numbers without a fraction lose nothing.
        takes_floats = leaf.dtype.kind == "f" or (isinstance(space, spaces.Box) and leaf.dtype.kind in "iu")
        return cls(leaf, *bounds_of(space), action, takes_floats)

    @property
    def name(self) -> str:
        return f"{self.action} {self.leaf.path!r}" if self.leaf.path else self.action

    def takes(self, dtype: np.dtype) -> bool:
        return is_castable(dtype, self.leaf.dtype) or (self.takes_floats and dtype.kind == "f")


class ActionReader:
    """A reader of batches of actions.

    Parameters
    ----------
    mode
        "check": a float outside of its bounds by rounding alone is set to the bound; other values outside are refused.
        "clip": values outside are set to the bound; NaN is refused.
        "pass": floats stay as they are; integers outside are refused.
    action
        What messages call an action.
    """

    def __init__(self, single_space: spaces.Space, mode: str = "check", action: str = OF_POLICY):
        self._space = single_space
        columns = [
            (Column.of(leaf, space, action), _is_accepted(space, mode))
            for leaf, space in zip(leaves(single_space), leaf_spaces(single_space), strict=True)
        ]
        self._columns = [(column, accepts, partial(TREATMENTS[mode], column)) for column, accepts in columns]
        self._is_single = not isinstance(single_space, spaces.Dict | spaces.Tuple)

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
        if self._is_single and type(actions) is np.ndarray:  # What is as it should be needs no more than this look.
            (leaf, *_), is_accepted, _ = self._columns[0]
            if (
                actions.dtype == leaf.dtype
                and actions.shape == (len(env_indices), *leaf.shape)
                and is_accepted(actions)
            ):
                return [actions]
        arrays = []
        take = self._take_from(actions, len(env_indices))
        for column, is_accepted, treat in self._columns:
            leaf, array = column.leaf, self._array(column, take, actions)
            shape = len(env_indices), *leaf.shape
            if array.shape != shape or not column.takes(array.dtype):
                raise ActionError(
                    f"{column.name} must be {leaf.dtype} of shape {shape}, got {array.dtype} of shape {array.shape}"
                )
            if leaf.dtype.kind == "f":  # As it will be sent: float64's 0.7 is above a float32 bound of 0.7.
                array = array.astype(leaf.dtype, copy=False)
            elif array.dtype.kind == "f":
                array = _whole(column, array, env_indices)
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
        if isinstance(actions, np.ndarray) and actions.ndim <= len(self._columns[0][0].leaf.shape) + 1:
            return None  # A wrong plan is found soon: a policy that gives one step at a time is asked in each.
        try:
            pairs = [(column.leaf, column.leaf.of(actions)) for column, *_ in self._columns]
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
        """Return a function that takes a leaf out of actions.  A tuple that Gymnasium reads as batches is batches."""
        if isinstance(actions, list | tuple):
            if isinstance(self._space, spaces.Dict):
                return _of_each
            if isinstance(self._space, spaces.Tuple) and len(self._space.spaces) != len(actions) == num_envs:
                return _of_each
        return Leaf.of

    @staticmethod
    def _array(column: Column, take: Callable[[Leaf, Tree], object], actions: object) -> np.ndarray:
        try:
            return np.asarray(take(column.leaf, actions))
        except (TypeError, ValueError, LookupError) as error:
            raise ActionError(f"{column.name} cannot be read: {words_of(error)}") from error


def _of_each(leaf: Leaf, samples: Sequence[object]) -> list[object]:
    return [leaf.of(sample) for sample in samples]


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
    smallest, largest = np.minimum.reduce, np.maximum.reduce

    def is_inside(array: np.ndarray) -> bool:
        if lowest == 0 and array.dtype.kind == "i":  # As unsigned numbers, negative ones are large: one pass for both.
            return bool(largest(array.view(UNSIGNED[array.itemsize]), axis=None).item() <= highest)
        # Where there is NaN, it is the minimum and the maximum, and compares as false.
        return smallest(array, axis=None).item() >= lowest and largest(array, axis=None).item() <= highest

    return is_inside


def _whole(column: Column, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    """Return floats as integers of the column's dtype, if they all are such integers; else as they are.

    Raises
    ------
    ActionError
        Some are no whole numbers.
    """
    dtype = column.leaf.dtype
    with np.errstate(invalid="ignore"):
        whole = array.astype(dtype)
    if (whole == array).all():
        return whole
    is_whole = np.rint(array) == array
    if not is_whole.all():
        place = tuple(map(int, np.argwhere(~is_whole)[0]))
        got = f"{array.dtype} {array[place]}, which is no whole number"
        raise ActionError(f"{column.name}{_where(place, env_indices)} must be {dtype}, got {got}; give {dtype}")
    # Compared as floats, 2**63 is not above the largest int64.
    return np.where((whole == array) | (np.abs(array) < 2.0**63), array, np.copysign(np.inf, array))


def _clip(column: Column, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    clipped = _nearest(column, array)
    if not (clipped == clipped).all():
        raise _outside(column, clipped, env_indices)
    return clipped


def _round(column: Column, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    nearest = _nearest(column, array)
    is_close = nearest == array
    if column.leaf.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # Infinity is not close to infinity, but equal.
            is_close |= np.abs(nearest - array) <= rounding(column.low, column.high, column.leaf.dtype)
    if not is_close.all():
        raise _outside(column, np.where(is_close, nearest, array), env_indices)
    return nearest


def _refuse(column: Column, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
    raise _outside(column, array, env_indices)


TREATMENTS = {"check": _round, "clip": _clip, "pass": _refuse}  # What to do with an array that is not inside.


def _nearest(column: Column, array: np.ndarray) -> np.ndarray:
    """Return the nearest values within the bounds.  NaN stays, and no comparison depends on a cast."""
    low, high, dtype = column.low, column.high, column.leaf.dtype
    with np.errstate(invalid="ignore"):  # Floats outside of an integer's range are not used.
        values = array.astype(dtype)
    return np.where(array <= low, low, np.where(array >= high, high, values)).astype(dtype)


def _outside(column: Column, array: np.ndarray, env_indices: EnvIndices) -> ActionError:
    place = tuple(int(i) for i in np.argwhere(~((array >= column.low) & (array <= column.high)))[0])
    lowest, highest = (np.broadcast_to(bound, array.shape)[place] for bound in (column.low, column.high))
    return ActionError(
        f"{column.name}{_where(place, env_indices)} must be in {lowest} to {highest}, got {array[place]}; "
        f"{_way_out(column, array[place])}"
    )


def _where(place: tuple[int, ...], env_indices: EnvIndices) -> str:
    return f" for env {env_indices[place[0]]}" + (f", component {list(place[1:])}" if place[1:] else "")


def _way_out(column: Column, value: np.generic) -> str:
    is_of_policy = column.action == OF_POLICY
    if value != value:
        return "correct the policy" if is_of_policy else "correct what chooses it"
    clip = "clip it in the policy" if is_of_policy else "clip it"
    if column.leaf.dtype.kind == "f":
        return f'{clip} or by gymnasium.wrappers.ClipAction, or set actions to "clip" or "pass"'
    return f'{clip}, or set actions to "clip"'
