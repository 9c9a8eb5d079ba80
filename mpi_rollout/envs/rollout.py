"""What natively vectorized envs may offer beside `step`: many steps in one call, or steps in parts."""

import sys
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Leaf, Tree, leaves
from mpi_rollout.envs.inputs import Step

OUTCOME = ("observations", "rewards", "terminations", "truncations")


@dataclass(frozen=True, eq=False)
class RolloutColumns:
    """The caller's arrays for the outcome of up to L steps of n envs; None for what nobody reads: it is not made.

    Row t is the outcome of step t.  Rows may be anywhere: the columns of a slot and parts of a block are welcome.  Each
    row is C-contiguous, and rows do not overlap.

    Parameters
    ----------
    observations
        (L, n, ...), of the dtype of the env's observation space.
    rewards
        (L, n) float64.
    terminations, truncations
        (L, n) bool.
    """

    observations: np.ndarray | None = None
    rewards: np.ndarray | None = None
    terminations: np.ndarray | None = None
    truncations: np.ndarray | None = None

    def wanted(self) -> dict[str, np.ndarray]:
        """Return the arrays that somebody reads, by name."""
        return {name: array for name in OUTCOME if (array := getattr(self, name)) is not None}


@runtime_checkable
class Rollout(Protocol):
    """A `gymnasium.vector.VectorEnv` that takes many steps in one call.

    `rollout` gives the same bytes as one call of `step` after the other.  An attribute
    `takes_uint8 = True` says that actions of `Discrete(2)` may come as uint8, which needs an eighth of the memory.
    """

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps, and write their outcome into the first rows of the caller's arrays.

        Parameters
        ----------
        actions
            (num_steps, num_envs, ...): those of step t in row t.
        columns
            At least as many rows; the rest stay as they are.  Give the same object again for the same arrays: they are
            looked at the first time only.

        Raises
        ------
        mpi_rollout.errors.ActionError
            An action is not in its space, or the array is not what it should be.  No env has taken a step.
        ValueError
            A column has another shape, dtype or layout than it should have.  No env has taken a step.
        """

    def last_observations(self) -> np.ndarray:
        """Return the observations (num_envs, ...) that the last step or reset has led to, in a new array."""


@runtime_checkable
class SendRecv(Protocol):
    """A `gymnasium.vector.VectorEnv` whose steps have parts: it can be in the next step while a rank writes the last.

    `step` gives the same bytes as its parts, one after the other.
    """

    def send(self, actions: Tree) -> None:
        """Begin a step."""

    def recv(self) -> list[np.ndarray]:
        """Wait until the step is over; return what `outcome` takes, valid as long as one refers to it."""

    def outcome(self, states: list[np.ndarray]) -> Step:
        """Return what `step` returns."""


def as_rollout(envs: VectorEnv) -> Rollout | None:
    """Return envs that take many steps in one call; None for others, and where spaces are dicts or tuples of arrays."""
    spaces = envs.single_observation_space, envs.single_action_space
    has_parts = any(leaf.keys for space in spaces for leaf in leaves(space))
    return envs if isinstance(envs, Rollout) and not has_parts else None


def num_rows_of(columns: RolloutColumns, num_envs: int, observation: Leaf) -> int:
    """Return the number of steps that columns have room for; ValueError if they are not what `RolloutColumns` says."""
    num_rows = sys.maxsize  # There is room for what nobody reads.
    dtypes = {"observations": observation.dtype, "rewards": np.dtype(np.float64)}
    for name, array in columns.wanted().items():
        inner, dtype = observation.shape if name == "observations" else (), dtypes.get(name, np.dtype(np.bool_))
        if num_rows == sys.maxsize and isinstance(array, np.ndarray) and array.ndim:
            num_rows = len(array)
        shape = (num_rows, num_envs, *inner)
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
            got = f"{array.shape} of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(f"the column {name} must be an array {shape} of {dtype}, got {got}")
        if not array.flags.writeable or not array.flags.aligned or not has_rows(array):
            expected = "writeable and aligned, with C-contiguous rows that follow one another"
            raise ValueError(f"the column {name} must be {expected}, got strides {array.strides}")
    return num_rows


def has_rows(array: np.ndarray) -> bool:
    """Tell whether rows are C-contiguous and follow one another."""
    if array.flags.c_contiguous:
        return True
    pitch, rest = divmod(array.strides[0], array.itemsize)
    return array[0].flags.c_contiguous and not rest and pitch >= array[0].size
