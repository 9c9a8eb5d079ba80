"""Observations as networks of files take them: one array for each leaf, by its path."""

from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Leaf, Space, leaves
from mpi_rollout.errors import UsageError

TRIAL_ROWS = 3, 2  # A network is tried on batches of two sizes.


def zeros(space: Space, rows: int) -> dict[str, np.ndarray]:
    """Return observations of zeros by path, such as the rows of a block have that belong to no env."""
    return {leaf.path: np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in leaves(space)}


def by_path(space_leaves: tuple[Leaf, ...], observations: Any) -> dict[str, np.ndarray]:
    """Return the arrays of observations by the paths of their leaves."""
    return {leaf.path: leaf.of(observations) for leaf in space_leaves}


def check_dtype(leaf: Leaf, wanted: np.dtype) -> None:
    """Check that an observation may be given to a network that wants a dtype.

    Floats may become other floats, and whole numbers other whole numbers.  Bytes of an image do not become floats: some
    networks want these from 0 to 255, and some from 0 to 1.

    Raises
    ------
    UsageError
        It may not.
    """
    if _kind(leaf.dtype) != _kind(wanted):
        name = f"observation {leaf.path!r}" if leaf.path else "observations"
        raise UsageError(
            f"takes {wanted} where the envs' {name} are {leaf.dtype}; save a network that takes {leaf.dtype}, "
            "and that converts and scales them itself"
        )


def _kind(dtype: np.dtype) -> str:
    return "i" if dtype.kind == "u" else dtype.kind
