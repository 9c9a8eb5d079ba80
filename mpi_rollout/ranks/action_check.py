"""Actions on their way in: read and checked once, where they enter; afterwards they are trusted.

Their shape and the kind of their dtype must be right.  What happens to values outside of their space depends on the
mode.  In no mode does an integer outside of its range reach an env: code in C++ would read memory by it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Leaf, bounds_of, is_castable, leaf_spaces, leaves, rounding
from mpi_rollout.errors import ActionError, words_of


class ActionReader:
    """Read batches of actions.

    Parameters
    ----------
    mode
        "check": a float that is outside of its bounds by rounding alone is set to the bound; others are refused.
        "clip": what is outside is set to the bound; NaN is refused.
        "pass": floats stay as they are; integers that are outside are refused.
    """

    def __init__(self, single_space: spaces.Space, mode: str = "check"):
        self._space = single_space
        self._columns = [
            (leaf, _is_accepted(space, mode), partial(TREATMENTS[mode], leaf, *bounds_of(space)))
            for leaf, space in zip(leaves(single_space), leaf_spaces(single_space), strict=True)
        ]

    def __call__(self, actions: Any, env_indices: Sequence[int]) -> list[np.ndarray]:
        """Return an array of shape (len(env_indices), ...) for each leaf.

        Parameters
        ----------
        actions
            An array, or a tree of arrays; for Dict and Tuple spaces also a list with a sample for each env.

        Raises
        ------
        ActionError
            The actions for these envs are not right.
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

    def _take_from(self, actions: Any, num_envs: int) -> Callable[[Leaf, Any], Any]:
        """How a leaf is taken out of the actions.  What Gymnasium can read as a tuple of batches is one."""
        is_list = isinstance(actions, list | tuple)
        if is_list and isinstance(self._space, spaces.Dict):
            return _of_each
        if is_list and isinstance(self._space, spaces.Tuple) and len(self._space.spaces) != len(actions) == num_envs:
            return _of_each
        return Leaf.of

    @staticmethod
    def _array(leaf: Leaf, take: Callable[[Leaf, Any], Any], actions: Any) -> np.ndarray:
        try:
            return np.asarray(take(leaf, actions))
        except (TypeError, ValueError, LookupError) as error:
            raise ActionError(f"the policy's {_name(leaf)} cannot be read: {words_of(error)}") from error


def _of_each(leaf: Leaf, samples: Sequence[Any]) -> list[Any]:
    return [leaf.of(sample) for sample in samples]


def _name(leaf: Leaf) -> str:
    return f"action {leaf.path!r}" if leaf.path else "action"


def _is_accepted(space: spaces.Space, mode: str) -> Callable[[np.ndarray], bool]:
    """A function that tells whether an array needs no treatment."""
    if mode == "pass" and np.dtype(space.dtype).kind == "f":
        return lambda array: True
    return inside(space)


def inside(space: spaces.Space) -> Callable[[np.ndarray], bool]:
    """A function that tells whether low <= array <= high everywhere, in as few passes as the bounds allow.

    It stands between the slots of one step and the order of the next, where every rank waits for it.
    """
    low, high = bounds_of(space)
    if low.size == 0:
        return lambda array: True
    lowest, highest = low.flat[0].item(), high.flat[0].item()
    if (low != lowest).any() or (high != highest).any():
        return lambda array: bool(((array >= low) & (array <= high)).all())
    # NaN is the smallest and the largest of all that it is among, and compares as false.
    return lambda array: array.min().item() >= lowest and array.max().item() <= highest


def _clip(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray, env_indices: Sequence[int]) -> np.ndarray:
    clipped = _nearest(leaf, low, high, array)
    if not (clipped == clipped).all():
        raise _outside(leaf, clipped, low, high, env_indices)
    return clipped


def _round(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray, env_indices: Sequence[int]) -> np.ndarray:
    nearest = _nearest(leaf, low, high, array)
    is_close = nearest == array
    if leaf.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # Infinity is not close to infinity, but equal.
            is_close |= np.abs(nearest - array) <= rounding(low, high, leaf.dtype)
    if not is_close.all():
        raise _outside(leaf, np.where(is_close, nearest, array), low, high, env_indices)
    return nearest


def _refuse(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray, env_indices: Sequence[int]) -> np.ndarray:
    raise _outside(leaf, array, low, high, env_indices)


TREATMENTS = {"check": _round, "clip": _clip, "pass": _refuse}  # Of an array that is not inside.


def _nearest(leaf: Leaf, low: np.ndarray, high: np.ndarray, array: np.ndarray) -> np.ndarray:
    """What is nearest within the bounds.  NaN stays, and no comparison depends on a cast."""
    return np.where(array < low, low, np.where(array > high, high, array.astype(leaf.dtype))).astype(leaf.dtype)


def _outside(leaf: Leaf, array: np.ndarray, low: Any, high: Any, env_indices: Sequence[int]) -> ActionError:
    place = tuple(int(i) for i in np.argwhere(~((array >= low) & (array <= high)))[0])
    low, high = (np.broadcast_to(bound, array.shape)[place] for bound in (low, high))
    component = f", component {list(place[1:])}" if place[1:] else ""
    return ActionError(
        f"the policy's {_name(leaf)} for env {env_indices[place[0]]}{component} must be in {low} to {high}, "
        f"got {array[place]}; {_way_out(leaf, array[place])}"
    )


def _way_out(leaf: Leaf, value: Any) -> str:
    if value != value:
        return "correct the policy"
    if leaf.dtype.kind == "f":
        return 'clip it in the policy or by gymnasium.wrappers.ClipAction, or set actions to "clip" or "pass"'
    return 'clip it in the policy, or set actions to "clip"'
