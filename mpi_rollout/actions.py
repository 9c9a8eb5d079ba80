"""Are these the actions of a space?  Checked once, where they enter; afterwards they are trusted."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.errors import DataError
from mpi_rollout.layout import Leaf, bounds, leaf_spaces, leaves


class ActionCheck:
    """Are these the actions of a space?  Checked once, where they enter; afterwards they are trusted."""

    def __init__(self, single_space: spaces.Space):
        self._columns = [
            (leaf, *bounds(space), inside(space))
            for leaf, space in zip(leaves(single_space), leaf_spaces(single_space), strict=True)
        ]

    def __call__(self, actions: Any, env_indices: Sequence[int]) -> None:
        """Raise DataError where the actions for these envs are not right."""
        for leaf, low, high, is_inside in self._columns:
            array, shape = self._array(leaf, actions), (len(env_indices), *leaf.shape)
            if array.shape != shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                raise DataError(
                    f"the policy's {_name(leaf)} must be {leaf.dtype} of shape {shape}, "
                    f"got {array.dtype} of shape {array.shape}"
                )
            if leaf.dtype.kind == "f":  # As it will be sent: float64's 0.7 is above a float32 bound of 0.7.
                array = array.astype(leaf.dtype, copy=False)
            if not is_inside(array):
                raise self._outside(leaf, array, low, high, env_indices)

    @staticmethod
    def _array(leaf: Leaf, actions: Any) -> np.ndarray:
        try:
            return np.asarray(leaf.of(actions))
        except (TypeError, ValueError, LookupError) as error:
            raise DataError(f"the policy's {_name(leaf)} cannot be read: {type(error).__name__}: {error}") from error

    @staticmethod
    def _outside(leaf: Leaf, array: np.ndarray, low: Any, high: Any, env_indices: Sequence[int]) -> DataError:
        place = tuple(int(i) for i in np.argwhere(~((array >= low) & (array <= high)))[0])
        low, high = (np.broadcast_to(bound, array.shape)[place] for bound in (low, high))
        component = f", component {list(place[1:])}" if place[1:] else ""
        return DataError(
            f"the policy's {_name(leaf)} for env {env_indices[place[0]]}{component} must be in {low} to {high}, "
            f"got {array[place]}; clip it in the policy"
        )


def _name(leaf: Leaf) -> str:
    return f"action {leaf.path!r}" if leaf.path else "action"


def inside(space: spaces.Space) -> Callable[[np.ndarray], bool]:
    """A function that tells whether low <= array <= high everywhere, in as few passes as the bounds allow.

    It stands between the slots of one step and the order of the next, where every rank waits for it.
    """
    low, high = bounds(space)
    if low.size == 0:
        return lambda array: True
    lowest, highest = low.flat[0].item(), high.flat[0].item()
    if (low != lowest).any() or (high != highest).any():
        return lambda array: bool(((array >= low) & (array <= high)).all())
    # NaN is the smallest and the largest of all that it is among, and compares as false.
    return lambda array: array.min().item() >= lowest and array.max().item() <= highest
