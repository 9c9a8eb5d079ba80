"""Writing what single envs return into columns.

What has the dtype of its space is written at once.  Only what did not fit is looked at.  It is cast, as by Gymnasium's
`SyncVectorEnv`, unless its kind is another one or an integer would lose its value: then the message names the env.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812

import numpy as np

from mpi_rollout.core.columns import RESULTS, is_result, noun
from mpi_rollout.core.spaces import Leaf, Tree, is_castable
from mpi_rollout.envs.faults import Parts
from mpi_rollout.errors import DataError, Option
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.text import message_of, words_of

MISFITS = (TypeError, ValueError, AttributeError, LookupError)


class Casting:
    """What to do about observations of another dtype than their space's; shared by all columns of a slice.

    They are refused (`is_strict`), or cast with a notice of the first one of each leaf.
    """

    def __init__(self, is_strict: bool = False):
        self.is_strict = is_strict
        self._noted: set[Leaf] = set()

    def cast(self, leaf: Leaf, values: np.ndarray, envs: str) -> np.ndarray:
        """Return the same values, to be stored with the leaf's dtype; TypeError or ValueError if they are refused."""
        if self.is_strict:
            raise TypeError(f"strict_dtypes refuses {values.dtype}")
        fitted = fitting(values, leaf.dtype)
        if leaf not in self._noted:
            self._noted.add(leaf)
            what = f"its {noun(leaf)} is {values.dtype}, its space is {leaf.dtype}; it is cast from now on; "
            NOTICES.note(envs, what, Option("env_checks", "dtypes"), " refuses it instead")
        return fitted


class ObservationRows:
    """Rows into which neighbouring envs' observations are written.

    In each row are an array (num_envs, ...) for each leaf, and behind them others, which stay as they are.
    """

    def __init__(
        self, observations: Sequence[Leaf], rows: Sequence[Sequence[np.ndarray]], first_env_index: int, casting: Casting
    ):
        self._leaves, self._first_env_index, self._casting = observations, first_env_index, casting
        # Each row's arrays with env axis and the leaf's first axis merged; and which leaves are cast.
        self._rows = [
            [
                column.reshape(len(column) * leaf.shape[0] if leaf.shape else -1, *leaf.shape[1:])
                for leaf, column in zip(observations, arrays, strict=False)
            ]
            for arrays in rows
        ]
        self._is_cast = [False] * len(observations)

    def write(self, observations: Parts, row: int = 0) -> None:
        """Write one observation of each env; DataError for one that is not what the space says."""
        self._write(observations, self._rows[row], self._first_env_index)

    def write_one(self, place: int, observation: Tree, row: int) -> None:
        lengths = [leaf.shape[0] if leaf.shape else 1 for leaf in self._leaves]
        pairs = zip(self._rows[row], lengths, strict=True)
        targets = [target[place * length : (place + 1) * length] for target, length in pairs]
        self._write([observation], targets, self._first_env_index + place)

    def _write(self, observations: Parts, targets: list[np.ndarray], first_env_index: int) -> None:
        for index, leaf in enumerate(self._leaves):
            try:
                parts = [leaf.of(observation) for observation in observations] if leaf.keys else observations
                write_leaf(leaf, parts, targets[index], self._is_cast[index])
            except MISFITS as error:
                self._cast(index, observations, targets[index], first_env_index, error)

    def _cast(
        self, index: int, observations: Parts, target: np.ndarray, first_env_index: int, error: Exception
    ) -> None:
        """Write observations that did not fit, if they can be cast, and cast this leaf from now on."""
        leaf = self._leaves[index]
        try:
            if self._is_cast[index] or not leaf.shape:
                raise error
            parts = [np.asarray(leaf.of(observation)) for observation in observations]
            write_leaf(leaf, parts, target, is_cast=True)
            place = [part.dtype == leaf.dtype for part in parts].index(False)
            self._casting.cast(leaf, parts[place], f"env {first_env_index + place}")
        except MISFITS:
            raise misfit(leaf, observations, first_env_index, error, self._casting.is_strict) from error
        self._is_cast[index] = True


def write_leaf(leaf: Leaf, parts: Parts, target: np.ndarray, is_cast: bool) -> None:
    """Write one part per env into a column; one of `MISFITS` if a part is not of the leaf's shape or dtype.

    Arrays must have the leaf's dtype, unless they are cast; scalars may be numbers of its kind.
    """
    if leaf.shape and set(map(len, parts)) != {leaf.shape[0]}:
        raise ValueError("not of the space's shape")
    if leaf.shape and not is_cast:
        np.concatenate(parts, out=target, casting="no")  # Checks the dtype and all axes but the first.
        return
    values = np.concatenate(parts) if leaf.shape else np.array(parts)
    if values.shape != target.shape:
        raise ValueError("not of the space's shape")
    target[...] = fitting(values, leaf.dtype)


def fitting(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the same values, to be stored as another dtype.

    TypeError if they are of another kind, ValueError if an integer is too large.
    """
    if values.dtype == dtype:
        return values
    if not is_castable(values.dtype, dtype):
        raise TypeError(f"{values.dtype} cannot become {dtype}")
    if dtype.kind in "iu" and (values.astype(dtype) != values).any():
        raise ValueError(f"with values that {dtype} cannot hold")
    return values


class ResultColumns:
    """Columns into which one reward and two ends per env are written; each may be an array of one element.

    Rewards are written by `struct`, which takes none of what NumPy would make a number of: None, which becomes NaN, and
    text.  It takes about half of NumPy's time for Python's floats, a quarter for `np.float32`, more only for many
    `np.float64`.
    """

    def __init__(self, columns: Sequence[np.ndarray], first_env_index: int):
        self._first_env_index = first_env_index
        self._rewards, *ends = columns
        self._pack = partial(Struct(f"{len(self._rewards)}d").pack_into, self._rewards.data.cast("B"), 0)
        self._ends = list(zip(RESULTS[1:], ends, strict=True))

    def write(self, rewards: Parts, terminations: Parts, truncations: Parts) -> bool:
        """Write the results of a step; return whether there may be ends among them.

        DataError for a reward that is no number or an end that is no truth value.
        """
        try:
            self._pack(*rewards)
        except StructError:
            self._write_one_by_one(RESULTS[0], self._rewards, rewards, _as_number)
        has_ends = False
        for (leaf, column), values in zip(self._ends, (terminations, truncations), strict=True):
            try:
                if values.count(False) == len(column):  # The usual case, and quicker.
                    column.fill(False)
                    continue
                column[:] = values
            except (TypeError, ValueError):
                self._write_one_by_one(leaf, column, values, _as_scalar)
            has_ends = True
        return has_ends

    def _write_one_by_one(
        self, leaf: Leaf, column: np.ndarray, values: Parts, convert: Callable[[object], object]
    ) -> None:
        for index, value in enumerate(values):
            try:
                column[index] = convert(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise misfit(leaf, [value], self._first_env_index + index, error) from error


def _as_scalar(value: object) -> object:
    return value.item() if isinstance(value, np.ndarray) else value


def _as_number(value: object) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("text is no number")
    return float(_as_scalar(value))  # type: ignore[arg-type]  # What is no number is a TypeError.


def misfit(leaf: Leaf, outputs: Parts, first_env_index: int, error: Exception, is_strict: bool = False) -> DataError:
    """Name the first env whose observation or result is not what the leaf says."""
    for index, output in enumerate(outputs, first_env_index):
        way_out: tuple[str | Option, ...] = ("correct the env or its space",)
        try:
            array = np.asarray(output if is_result(leaf) else leaf.of(output))
            reason = _reason(leaf, array, is_strict)
            if reason is None:
                continue
            got = f"{array.dtype} of shape {array.shape}{reason}"
            if is_result(leaf) and array.ndim == 0:
                got = f"{output!r:.80}"
            if leaf is RESULTS[0] and array.size > 1:
                way_out = one_number(array.shape)
            elif array.shape == leaf.shape and array.dtype.kind in "biuf" and not leaf.keys:
                way_out += (", or wrap the env with gymnasium.wrappers.DtypeObservation",)
        except (TypeError, ValueError, LookupError) as problem:
            got = f"{type(output).__name__} without it ({words_of(problem)})"
        expected = f"{leaf.dtype} of shape {leaf.shape}"
        return DataError(f"env {index}: its {noun(leaf)} should be {expected}, got {got}; ", *way_out)
    return DataError(f"envs {first_env_index} to {first_env_index + len(outputs) - 1}: {message_of(error)}")


def one_number(shape: tuple[int, ...]) -> tuple[str | Option, ...]:
    """Say how an env whose rewards have this shape is collected: by one number, with the parts as an info."""
    if "mo_gymnasium" in sys.modules:
        wrapper = Option("wrappers", "mo_gymnasium.wrappers:LinearReward")
        infos = Option("store_infos", {"vector_reward": ["float64", *shape]})
        return wrapper, " makes one number of it, and ", infos, " stores its parts"
    wrapper_words = "make one number of it by a wrapper such as gymnasium.wrappers.TransformReward; "
    return wrapper_words, Option("store_infos"), " stores its parts, where an info has them"


def _reason(leaf: Leaf, array: np.ndarray, is_strict: bool) -> str | None:
    """Return why one env's part is refused, "" where dtype and shape say it; None if it is not refused."""
    if array.shape != leaf.shape:
        return ""
    if is_strict and leaf.shape:
        return "" if array.dtype != leaf.dtype else None
    try:
        fitting(array, leaf.dtype)
    except TypeError:
        return ""
    except ValueError as error:
        return f" {error}"
    return None


def is_exact(observations: Sequence[Leaf], observation: object) -> bool:
    """Tell whether an observation has the types with which it comes out of columns: NumPy's, with its space's dtype."""
    parts = [(leaf, leaf.of(observation)) for leaf in observations]
    return all(
        type(part) is np.ndarray and part.dtype == leaf.dtype if leaf.shape else type(part) is leaf.dtype.type
        for leaf, part in parts
    )
