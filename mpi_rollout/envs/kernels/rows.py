"""Rows of columns as kernels take them: one flat array, and the distance of two rows in it."""

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mpi_rollout.envs.rollout import RolloutColumns

OBSERVATION_SIZE = 4
DTYPES = {
    "observations": (np.dtype(np.float32),),
    "rewards": (np.dtype(np.float64), np.dtype(np.float32)),
    "terminations": (np.dtype(np.bool_),),
    "truncations": (np.dtype(np.bool_),),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Row t begins at element t * `pitch` of `flat`.  What lies between two rows belongs to others."""

    flat: np.ndarray
    pitch: int


def rows_of(array: np.ndarray) -> Rows:
    """Return the rows of an array whose rows are C-contiguous, without a copy; bool becomes uint8."""
    array = array.view(np.uint8) if array.dtype == np.bool_ else array
    size = math.prod(array.shape[1:])
    if array.flags.c_contiguous:
        return Rows(array.reshape(-1), size)
    pitch = array.strides[0] // array.itemsize
    num_elements = (len(array) - 1) * pitch + size
    return Rows(as_strided(array, (num_elements,), (array.itemsize,)), pitch)


def num_rows_of(columns: RolloutColumns, num_envs: int) -> int:
    """Return how many steps columns have room for.

    Raises
    ------
    ValueError
        They are not what `RolloutColumns` says; the message names the array.
    """
    num_rows = sys.maxsize  # There is room for what nobody reads.
    for name, dtypes in DTYPES.items():
        array = getattr(columns, name)
        if array is None:
            continue
        if num_rows == sys.maxsize and isinstance(array, np.ndarray) and array.ndim:
            num_rows = len(array)
        shape = (num_rows, num_envs) + ((OBSERVATION_SIZE,) if name == "observations" else ())
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype not in dtypes:
            expected = f"an array {shape} of {' or '.join(map(str, dtypes))}"
            raise ValueError(f"the column {name} must be {expected}, got {_described(array)}")
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


def _described(array: object) -> str:
    return f"{array.shape} of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
