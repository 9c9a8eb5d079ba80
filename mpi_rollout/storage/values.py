"""Wrong values in a file: observations outside of their space, and what is not finite.  They are stored, and counted.

The counts follow from the data and from what the file says of its spaces, and so are the same for any number of ranks,
after a run was continued, and in `verify`.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from mpi_rollout.core.layout import RESULTS, noun
from mpi_rollout.core.spaces import Bounds, Leaf, first_of
from mpi_rollout.storage.objects import ContentError

NONE_WRONG = (0, -1, -1)
OPTIONS = {"out_of_bounds": "--check-bounds", "not_finite": "--check-finite"}


class ValueCheck:
    """Counts the wrong values of one dataset below /trajectories.

    Parameters
    ----------
    noun
        What messages call one of its values.

    Attributes
    ----------
    counts
        By kind, see `Bounds`: in how many rows of an env there are such values, and step and env of the first of these.
    """

    def __init__(self, name: str, noun: str, bounds: Bounds):
        self.name, self._noun, self._bounds, self._num_rows = name, noun, bounds, 0
        self.counts = dict.fromkeys(bounds.kinds, NONE_WRONG)

    def append(self, array: np.ndarray, first_row: int, stop: int) -> list[str]:
        """Count in those of an array's first `stop` rows that were not there before; see `ChunkWriter.append`.

        Returns
        -------
        What is to be said of a kind that was not found before.
        """
        start = max(self._num_rows - first_row, 0)
        if stop <= start:
            return []
        self._num_rows = first_row + stop
        return self.add(array[start:stop], first_row + start)

    def add(self, values: np.ndarray, first_row: int, first_env: int = 0) -> list[str]:
        """Count in values of shape (rows, envs, ...); return what is to be said of a kind that was not found before."""
        if self._bounds.hold(values):
            return []
        words = []
        for kind, is_wrong in self._bounds.wrong(values).items():
            rows = is_wrong.reshape(*values.shape[:2], -1).any(axis=2)
            if not rows.any():
                continue
            row, env, *place = first_of(is_wrong)
            count, *first = self.counts[kind]
            if count == 0:
                what = self._bounds.words(kind, values[row, env, *place], place)
                words.append(self._warning(kind, first_row + row, first_env + env, what))
            here = first_row + row, first_env + env
            self.counts[kind] = count + int(rows.sum()), *(min(tuple(first), here) if count else here)
        return words

    def _warning(self, kind: str, step: int, env_index: int, words: str) -> str:
        return (
            f"env {env_index}, step {step}: its {self._noun} is {words}; such values are stored as they are, and "
            f"counted in the file; {OPTIONS[kind]} makes them errors of the env"
        )

    @property
    def found(self) -> list[dict[str, Any]]:
        """What is wrong, JSON-able."""
        return [_found(self.name, kind, *count) for kind, count in self.counts.items() if count[0]]


class ValueChecks:
    """Counts the wrong values of a file.

    Parameters
    ----------
    attributes
        Of its root group.

    Attributes
    ----------
    warnings
        What is to be said, once of each leaf and kind; whoever says it removes it.

    Raises
    ------
    ContentError
        They describe no space.
    """

    def __init__(self, attributes: Mapping[str, Any]):
        described = described_leaves(json.loads(attributes["spaces"])["observation"])
        reward = RESULTS[0]
        checks = [
            ValueCheck(f"observations/{leaf.path}".rstrip("/"), noun(leaf), Bounds(leaf.dtype, *ends))
            for leaf, *ends in described
        ]
        infinite = np.array(-np.inf), np.array(np.inf)
        checks.append(ValueCheck(reward.path, noun(reward), Bounds(reward.dtype, *infinite)))
        self.of = {check.name: check for check in checks if check.counts}
        self.warnings: list[str] = []

    def append(self, name: str, array: np.ndarray, first_row: int, stop: int) -> bool:
        """Count in rows of a dataset, see `ValueCheck.append`; tell whether there are more wrong values than before."""
        if name not in self.of:
            return False
        check = self.of[name]
        before = dict(check.counts)
        self.warnings += check.append(array, first_row, stop)
        return check.counts != before

    def write(self, trajectories: h5py.Group) -> None:
        """Put the counts into attributes of the datasets, which are there since the file was made."""
        for name, check in self.of.items():
            for kind, count in check.counts.items():
                trajectories[name].attrs.modify(kind, np.array(count, np.int64))

    @property
    def found(self) -> list[dict[str, Any]]:
        """What is wrong, JSON-able."""
        return [each for check in self.of.values() for each in check.found]


def counted_in(name: str, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the attributes of a dataset say of its wrong values, as `ValueChecks.found` does.

    Raises
    ------
    ContentError
        They are damaged.
    """
    found = []
    for kind in OPTIONS:
        count = attributes.get(kind, np.array(NONE_WRONG))
        if not isinstance(count, np.ndarray) or count.shape != (3,) or count.dtype.kind != "i":
            raise ContentError(
                f"the attribute {kind} of trajectories/{name} is {count!r:.80}, it should be three integers"
            )
        found.append((kind, *count.tolist()))
    return [_found(name, *each) for each in found if each[1] > 0]


def _found(name: str, kind: str, count: int, step: int, env_index: int) -> dict[str, Any]:
    return {"dataset": name, "kind": kind, "count": count, "step": step, "env_index": env_index}


def described_leaves(description: Any) -> list[tuple[Leaf, np.ndarray, np.ndarray]]:
    """The leaves of a space from what `layout.describe` says of it, with their bounds: one for all, or one for each
    component.

    Raises
    ------
    ContentError
        That is no space.
    """
    try:
        return list(_leaves(description, ()))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ContentError(f"its attribute spaces describes no space: {description!r:.80}") from error


def _leaves(description: dict[str, Any], keys: tuple[str | int, ...]) -> Iterator[tuple[Leaf, np.ndarray, np.ndarray]]:
    parts = description.get("subspaces")
    if parts is None:
        leaf = Leaf(keys, np.dtype(description["dtype"]), tuple(description["shape"]))
        low, high = (np.array(description[name], leaf.dtype) for name in ("low", "high"))
        if any(bound.shape not in ((), leaf.shape) for bound in (low, high)):
            raise ValueError("bounds of another shape")
        yield leaf, low, high
        return
    for key, child in parts.items() if isinstance(parts, dict) else enumerate(parts):
        yield from _leaves(child, (*keys, key))
