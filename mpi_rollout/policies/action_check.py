"""The check of actions: they are read and checked once, where they enter; afterwards they are trusted.

Their shape and the kind of their dtype must be right.  What happens to values outside of their space depends on the
mode.  In no mode does an integer outside of its range reach an env: code in C++ would use it as an address.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import (
    Leaf,
    Tree,
    bounds_of,
    in_native_order,
    is_castable,
    leaf_spaces,
    leaves,
    rounding,
    tree_of,
)
from mpi_rollout.errors import ActionError, Option
from mpi_rollout.text import words_of

EnvIndices = Sequence[int] | np.ndarray
UNSIGNED = {dtype.itemsize: dtype for dtype in map(np.dtype, (np.uint8, np.uint16, np.uint32, np.uint64))}
OF_POLICY = "the policy's action"
CLIP, PASS = Option("actions", "clip"), Option("actions", "pass")


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
        pairs = zip(leaves(single_space), leaf_spaces(single_space), strict=True)
        self._columns = [ActionColumn(leaf, space, mode, action) for leaf, space in pairs]
        self._is_single = not isinstance(single_space, spaces.Dict | spaces.Tuple)

    def __call__(self, actions: object, env_indices: EnvIndices) -> list[np.ndarray]:
        """Return an array of shape (len(env_indices), ...) for each leaf; ActionError if they are refused.

        They come as an array, or a tree of arrays; for Dict and Tuple spaces also as a list with a sample for each env.
        """
        num_envs = len(env_indices)
        if self._is_single and type(actions) is np.ndarray:  # What is as it should be needs no more than this look.
            column = self._columns[0]
            leaf = column.leaf
            if actions.dtype == leaf.dtype and actions.shape == (num_envs, *leaf.shape) and column.is_accepted(actions):
                return [actions]
        take = self._take_from(actions, num_envs)
        return [column.read(take, actions, env_indices) for column in self._columns]

    def plan(self, actions: object, env_indices: EnvIndices) -> list[np.ndarray] | None:
        """Read the actions of several steps, arrays (num_steps, len(env_indices), ...); None if they are of one step.

        ActionError if they are refused: the message names the row.
        """
        if isinstance(actions, np.ndarray) and actions.ndim <= len(self._columns[0].leaf.shape) + 1:
            return None  # A wrong plan is found soon: a policy that gives one step at a time is asked in each.
        try:
            pairs = [(column.leaf, column.leaf.of(actions)) for column in self._columns]
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
            self._refuse_first(pairs, env_indices)
            raise
        shapes = [(num_steps, num_envs, *leaf.shape) for leaf, _ in pairs]
        columns = zip(pairs, arrays, shapes, strict=True)
        return [array.astype(leaf.dtype, copy=False).reshape(shape) for (leaf, _), array, shape in columns]

    def _refuse_first(self, pairs: list[tuple[Leaf, np.ndarray]], env_indices: EnvIndices) -> None:
        """Raise the ActionError of the first row of several that has one, with its number."""
        for index in range(len(pairs[0][1])):
            try:
                self(tree_of(self._space, [array[index] for _, array in pairs]), env_indices)
            except ActionError as error:
                raise ActionError(f"in row {index} of the actions, ", *error.args) from error

    def _take_from(self, actions: object, num_envs: int) -> Callable[[Leaf, Tree], object]:
        """Return a function that takes a leaf out of actions.  A tuple that Gymnasium reads as batches is batches."""
        if isinstance(actions, list | tuple):
            if isinstance(self._space, spaces.Dict):
                return _of_each
            if isinstance(self._space, spaces.Tuple) and len(self._space.spaces) != len(actions) == num_envs:
                return _of_each
        return Leaf.of


def _of_each(leaf: Leaf, samples: Sequence[object]) -> list[object]:
    return [leaf.of(sample) for sample in samples]


class ActionColumn:
    """A leaf of the actions, and how its arrays are checked."""

    def __init__(self, leaf: Leaf, space: spaces.Space, mode: str, action: str):
        self.leaf, self._mode, self._is_of_policy = leaf, mode, action == OF_POLICY
        self._low, self._high = bounds_of(space)
        self._name = f"{action} {leaf.path!r}" if leaf.path else action
        # Gymnasium's vector envs give a Box of integers what they get; numbers without a fraction lose nothing.
        self._takes_floats = leaf.dtype.kind == "f" or (isinstance(space, spaces.Box) and leaf.dtype.kind in "iu")
        passes = mode == "pass" and np.dtype(space.dtype).kind == "f"
        self.is_accepted = (lambda array: True) if passes else inside(space)  # Tells whether an array stays as it is.

    def read(self, take: Callable[[Leaf, Tree], object], actions: object, env_indices: EnvIndices) -> np.ndarray:
        """Take an array (len(env_indices), ...) out of the actions, in their space; ActionError if it is refused."""
        leaf, shape = self.leaf, (len(env_indices), *self.leaf.shape)
        try:
            array = in_native_order(np.asarray(take(leaf, actions)))
        except (TypeError, ValueError, LookupError) as error:
            raise ActionError(f"{self._name} cannot be read: {words_of(error)}") from error
        is_castable_float = self._takes_floats and array.dtype.kind == "f"
        if array.shape != shape or not (is_castable_float or is_castable(array.dtype, leaf.dtype)):
            raise ActionError(
                f"{self._name} must be {leaf.dtype} of shape {shape}, got {described(array)}; "
                f"{self._repair(array, shape)}"
            )
        if leaf.dtype.kind == "f":  # As it will be sent: float64's 0.7 is above a float32 bound of 0.7.
            array = array.astype(leaf.dtype, copy=False)
        elif array.dtype.kind == "f":
            array = self._whole(array, env_indices)
        return array if self.is_accepted(array) else self._treat(array, env_indices)

    def _repair(self, array: np.ndarray, shape: tuple[int, ...]) -> str:
        """Return what makes of such an array what is wanted."""
        leaf, code = self.leaf, "actions" + "".join(f"[{key!r}]" for key in self.leaf.keys)
        if array.dtype == object and not array.ndim:
            return "return the actions" if self._is_of_policy else "give the actions as an array"
        if array.dtype.kind not in "biufc":
            return "give numbers"
        if array.shape == (*shape, 1):
            code += "[:, 0]" if len(shape) == 1 else "[..., 0]"
        elif (*array.shape, 1) == shape:
            code += "[:, None]"
        elif array.shape[:-1] == shape and array.dtype.kind == "f" and leaf.dtype.kind in "iu":
            return f"where these are scores, give {code}.argmax(axis=-1)"
        elif array.shape != shape:
            return f"give one action for each of {shape[0]} envs"
        if not is_castable(array.dtype, leaf.dtype):
            code += f"{'.real' * (array.dtype.kind == 'c')}.astype(np.{leaf.dtype})"
        return f"give {code}"

    def _whole(self, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
        """Return floats as integers of this dtype, else as they are; ActionError if some are no whole numbers."""
        dtype = self.leaf.dtype
        with np.errstate(invalid="ignore"):
            whole = array.astype(dtype)
        if (whole == array).all():
            return whole
        is_whole = np.rint(array) == array
        if not is_whole.all():
            place = _first(~is_whole)
            got = f"{array.dtype} {array[place]}, which is no whole number"
            raise ActionError(f"{self._name}{_where(place, env_indices)} must be {dtype}, got {got}; give {dtype}")
        # Compared as floats, 2**63 is not above the largest int64.
        return np.where((whole == array) | (np.abs(array) < 2.0**63), array, np.copysign(np.inf, array))

    def _treat(self, array: np.ndarray, env_indices: EnvIndices) -> np.ndarray:
        """Do with values outside what the mode says."""
        if self._mode == "pass":
            raise self._outside(array, env_indices)
        nearest = self._nearest(array)
        is_right = nearest == array
        if self._mode == "clip":
            is_right = nearest == nearest
        elif self.leaf.dtype.kind == "f":
            with np.errstate(invalid="ignore"):  # Infinity is not close to infinity, but equal.
                is_right |= np.abs(nearest - array) <= rounding(self._low, self._high, self.leaf.dtype)
        if not is_right.all():
            raise self._outside(np.where(is_right, nearest, array), env_indices)
        return nearest

    def _nearest(self, array: np.ndarray) -> np.ndarray:
        """Return the nearest values within the bounds.  NaN stays, and no comparison depends on a cast."""
        low, high, dtype = self._low, self._high, self.leaf.dtype
        with np.errstate(invalid="ignore"):  # Floats outside of an integer's range are not used.
            values = array.astype(dtype)
        return np.where(array <= low, low, np.where(array >= high, high, values)).astype(dtype)

    def _outside(self, array: np.ndarray, env_indices: EnvIndices) -> ActionError:
        place = _first(~((array >= self._low) & (array <= self._high)))
        lowest, highest = (np.broadcast_to(bound, array.shape)[place] for bound in (self._low, self._high))
        return ActionError(
            f"{self._name}{_where(place, env_indices)} must be in {lowest} to {highest}, got {array[place]}; ",
            *self._way_out(array[place]),
        )

    def _way_out(self, value: np.generic) -> Sequence[object]:
        if value != value:
            return ["correct the policy" if self._is_of_policy else "correct what chooses it"]
        clip = "clip it in the policy" if self._is_of_policy else "clip it"
        if self.leaf.dtype.kind == "f":
            return f"{clip} or by gymnasium.wrappers.ClipAction, or use ", CLIP, " or ", PASS
        return f"{clip}, or use ", CLIP


def described(array: np.ndarray) -> str:
    """Return in words what an array is, or the object that NumPy made one of."""
    if array.dtype != object or array.ndim:
        return f"{array.dtype} of shape {array.shape}"
    value = array.item()
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}" if value else "an empty dict"
    return "None" if value is None else f"{type(value).__name__} {value!r:.40}"


def _first(is_wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, np.argwhere(is_wrong)[0]))


def _where(place: tuple[int, ...], env_indices: EnvIndices) -> str:
    return f" for env {env_indices[place[0]]}" + (f", component {list(place[1:])}" if place[1:] else "")


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

    def is_inside(array: np.ndarray) -> bool:
        dtype = array.dtype
        # As unsigned numbers, negative ones are large: one pass for both.
        if lowest == 0 and dtype.kind == "i" and dtype.isnative and highest < 1 << (8 * dtype.itemsize - 1):
            array = array.view(UNSIGNED[dtype.itemsize])
            return bool(array.item(array.argmax()) <= highest)
        # Where there is NaN, it is the minimum and the maximum, and compares as false.
        return bool(array.item(array.argmin()) >= lowest and array.item(array.argmax()) <= highest)

    return is_inside


def check_actions_alone(given: Any, space: spaces.Space, size: int) -> None:
    """Raise ActionError for a tuple of actions and something else, such as SB3's `predict` returns."""
    is_tuple = isinstance(given, tuple) and not isinstance(space, spaces.Tuple)
    if is_tuple and (len(given) != size or any(entry is None for entry in given)):
        raise ActionError(
            f"the policy must return actions alone, returns a tuple of {len(given)}; return its first entry, as in "
            "model.predict(observations)[0]"
        )
