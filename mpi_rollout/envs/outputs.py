"""Writing what single envs return into columns, converting nothing that the space does not promise.

Values are looked at one by one only when they did not fit, to name the env whose fault it is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_rollout.errors import DataError
from mpi_rollout.layout import RESULTS, Leaf


class ObservationRows:
    """Columns into which neighbouring envs' observations are written.

    Parameters
    ----------
    observations
        The leaves of the space.
    arrays
        A column for each, one row per env.
    first_env_index
        Of the first row, for messages.
    """

    def __init__(self, observations: Sequence[Leaf], arrays: Sequence[np.ndarray], first_env_index: int):
        self._first_env_index = first_env_index
        self._targets = [
            (leaf, column.reshape(int(np.prod(column.shape[: 1 + bool(leaf.shape)])), *leaf.shape[1:]))
            for leaf, column in zip(observations, arrays, strict=True)
        ]

    def write(self, observations: Sequence[Any]) -> None:
        """Write one observation per row.

        Raises
        ------
        DataError
            One is not what the space says.
        """
        for leaf, target in self._targets:
            try:
                parts = [leaf.of(observation) for observation in observations] if leaf.keys else observations
                write_leaf(leaf, parts, target)
            except (TypeError, ValueError, AttributeError, LookupError) as error:
                raise misfit(leaf, observations, self._first_env_index, error) from error


def row_by_row(
    observations: Sequence[Leaf], arrays: Sequence[np.ndarray], first_env_index: int, num_envs: int
) -> list[ObservationRows]:
    """The same columns, to be written one env at a time."""
    return [
        ObservationRows(observations, [array[index : index + 1] for array in arrays], first_env_index + index)
        for index in range(num_envs)
    ]


def write_leaf(leaf: Leaf, parts: Sequence[Any], target: np.ndarray) -> None:
    """Write one part per env into a column, converting nothing that the space does not promise.

    Parameters
    ----------
    target
        The column with env axis and the leaf's first axis merged: what `np.concatenate` writes to.

    Raises
    ------
    TypeError, ValueError, AttributeError
        A part is not of the leaf's shape or dtype.
    """
    if leaf.shape:
        if set(map(len, parts)) != {leaf.shape[0]}:
            raise ValueError("not of the space's shape")
        np.concatenate(parts, out=target, casting="no")  # Checks the dtype and all axes but the first.
        return
    values = np.array(parts)
    if values.shape != target.shape or not _fits(values.dtype, leaf):
        raise ValueError("not scalars of the space's dtype")
    target[:] = values


def _fits(got: np.dtype, leaf: Leaf) -> bool:
    """Arrays must have the dtype itself; a scalar may be any Python or NumPy number of its kind."""
    if leaf.shape:
        return got == leaf.dtype
    kinds = {"i": "iub", "u": "iub", "b": "b", "f": "fiu"}
    return got.kind in kinds[leaf.dtype.kind]


def misfit(leaf: Leaf, outputs: Sequence[Any], first_env_index: int, error: Exception) -> DataError:
    """Name the first env whose observation or result is not what the leaf says."""
    for index, output in enumerate(outputs, first_env_index):
        try:
            array = np.asarray(output if leaf in RESULTS else leaf.of(output))
            if array.shape == leaf.shape and _fits(array.dtype, leaf):
                continue
            got = f"{array.dtype} of shape {array.shape}"
        except (TypeError, ValueError, LookupError) as problem:
            got = f"{type(output).__name__} without it ({type(problem).__name__}: {problem})"
        name = leaf.path if leaf in RESULTS else f"observation {leaf.path!r}" if leaf.path else "observation"
        return DataError(
            f"env {index}: its {name} should be {leaf.dtype} of shape {leaf.shape}, got "
            f"{got}; correct the env or its space, or wrap it in --env-factory, e.g. with "
            "gymnasium.wrappers.DtypeObservation"
        )
    return DataError(f"envs {first_env_index} to {first_env_index + len(outputs) - 1}: {error}")


def info_misfit(info: Any, env_index: int, error: Exception) -> DataError:
    """Name the env whose info cannot stand beside those of the envs before it."""
    return DataError(
        f"env {env_index}: its info should be a dict, its values of the types and shapes that other envs' have, got "
        f"{repr(info)[:200]} ({type(error).__name__}: {error}); make them alike, or name the infos that are wanted"
    )


def no_outcome(outcomes: Sequence[Any], first_env_index: int) -> DataError:
    """Name the first env whose step did not return what a step returns."""
    is_good = [isinstance(outcome, tuple | list) and len(outcome) == 5 for outcome in outcomes]
    index = is_good.index(False)
    got = f"{len(outcomes[index])} values" if isinstance(outcomes[index], tuple) else type(outcomes[index]).__name__
    return DataError(
        f"env {first_env_index + index}: its step should return observation, reward, terminated, truncated "
        f"and info, got {got}; envs of the old gym are made new by gymnasium's shimmy"
    )
