"""The values that a space promises: between its bounds, rounding aside, and finite."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NUM_ULPS = 4  # Scaling a value from -1 to 1 to its bounds takes four operations in floating point.
FEW = 1000  # Values for which it counts how often NumPy is called.


def rounding(low: np.ndarray, high: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """How far a float may be outside of its bounds by rounding alone."""
    largest = np.maximum(*(np.where(np.isfinite(bound), np.abs(bound), 0) for bound in (low, high)))
    with np.errstate(over="ignore"):  # Beyond the largest float there is infinity alone.
        return NUM_ULPS * np.spacing(largest, dtype=dtype)


class Bounds:
    """Which values of a leaf are wrong: "not_finite" (NaN and infinity), or else "out_of_bounds".

    Parameters
    ----------
    low, high
        Both inclusive, of the leaf's dtype; of its shape, or one for all components.

    Attributes
    ----------
    kinds
        What values of this dtype can be: nothing for an image of bytes from 0 to 255.
    """

    def __init__(self, dtype: np.dtype, low: np.ndarray, high: np.ndarray):
        self._is_float = dtype.kind == "f"
        self.low, self.high = np.asarray(low, dtype), np.asarray(high, dtype)
        self._shape = np.broadcast_shapes(self.low.shape, self.high.shape)
        if self._is_float:
            is_bounded = np.isfinite(self.low).any() or np.isfinite(self.high).any()
            slack = rounding(self.low, self.high, dtype).astype(np.float64)
            with np.errstate(over="ignore"):
                self._low, self._high = self.low - slack, self.high + slack
        else:
            least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            is_bounded = (self.low > least).any() or (self.high < most).any()
            self._low, self._high = self.low, self.high
        self.kinds = ("out_of_bounds",) * bool(is_bounded) + ("not_finite",) * self._is_float
        self._is_uniform = self.low.size > 0 and all((bound == bound.flat[0]).all() for bound in (self.low, self.high))
        self._ends = (self._low.flat[0].item(), self._high.flat[0].item()) if self._is_uniform else ()

    def hold(self, values: np.ndarray) -> bool:
        """Tell whether all values are right; of shape (rows, ...), where a row is one leaf or several.

        In two passes, at the rate at which memory is read.
        """
        if not self.kinds or values.size == 0:
            return True
        if values.size <= FEW:
            is_inside = ((values >= self._low) & (values <= self._high)).all()  # Not so where there is NaN.
            return bool(is_inside) and (not self._is_float or bool(np.isfinite(values).all()))
        with np.errstate(invalid="ignore"):
            if self._is_uniform:
                # NaN is the smallest and the largest of all that it is among, and compares as false.
                lowest, highest = values.min().item(), values.max().item()
                is_inside = lowest >= self._ends[0] and highest <= self._ends[1]
                return is_inside and (not self._is_float or bool(np.isfinite([lowest, highest]).all()))
            rows = values.reshape(len(values), -1)
            lowest, highest = (ends.reshape(-1, *self._shape) for ends in (rows.min(axis=0), rows.max(axis=0)))
            is_inside = ((lowest >= self._low) & (highest <= self._high)).all()
            return bool(is_inside) and (not self._is_float or bool(np.isfinite([lowest, highest]).all()))

    def wrong(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Which values are wrong: of each of `kinds` an array of bools of the values' shape."""
        is_finite = np.isfinite(values)
        found = {"not_finite": ~is_finite, "out_of_bounds": is_finite & ((values < self._low) | (values > self._high))}
        return {kind: found[kind] for kind in self.kinds}

    def words(self, kind: str, value: Any, place: Sequence[int]) -> str:
        """What is wrong with a value, that of the component at a place."""
        at = f" at {[*place]}" if place else ""
        if kind == "not_finite":
            return f"{value}{at}, which is not finite"
        low, high = (bound[tuple(place)] if bound.shape else bound for bound in (self.low, self.high))
        return f"{value}{at}, outside of its bounds {low} to {high}"


def first_of(wrong: np.ndarray) -> list[int]:
    """The place of the first True, which there must be.

    `np.argwhere` would list all places: of images that are wrong in every byte 32 times their memory and more.
    """
    return [int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape)]


def told(wrong: Sequence[Mapping[str, Any]]) -> str:
    """Wrong values of a file for people: what `storage.values.ValueChecks.found` gives."""
    return ", ".join(map(_told, wrong))


def _told(each: Mapping[str, Any]) -> str:
    group, _, leaf = each["dataset"].partition("/")
    noun = group if each["count"] != 1 else group.removesuffix("s")
    name = f"{each['count']:,} {noun}" + (f" {leaf!r}" if leaf else "")
    what = {"out_of_bounds": "outside of their space", "not_finite": "not finite"}[each["kind"]]
    what = what.replace("their", "its") if each["count"] == 1 else what
    return f"{name} {what} (first: env {each['env_index']}, step {each['step']:,})"
