"""Single transitions, by number or drawn at random.  Rows that only reset an env are never among them."""

import os
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.core.spaces import Space, Tree
from mpi_rollout.data.chunk_map import ChunkMap
from mpi_rollout.data.columns import group_tree, map_tree
from mpi_rollout.storage.stored_run import StoredRun


class Batch(NamedTuple):
    """Transitions as contiguous arrays of shape (n, ...), in dicts and tuples as the spaces nest them.

    Attributes
    ----------
    next_observations
        What came with the rewards: of the same episode, also at its end.
    terminations
        The env has ended the episode: what follows has no value.
    """

    observations: Tree
    actions: Tree
    rewards: np.ndarray
    next_observations: Tree
    terminations: np.ndarray


class FileTransitions:
    """All transitions of one file: those of episode after episode, in the order of a table."""

    def __init__(self, source: StoredRun, spaces: dict[str, Space | None], has_gaps: bool, episodes: np.ndarray):
        self._source, self._spaces = source, spaces
        self._has_gaps = has_gaps
        self._knows_final = any(name.startswith("final_observations") for name in source.leaves)
        lengths = episodes["length"].copy()
        if self._has_gaps and not self._knows_final:
            # What followed the last transition is not known, and who learns from it needs it.
            lengths -= episodes["truncated"] & ~episodes["terminated"] & (lengths > 0)
        self._starts, self._envs = episodes["start"], episodes["env_index"]
        self._has_ended = episodes["terminated"] | episodes["truncated"]
        self._last = self._starts + episodes["length"] - 1
        self._ends = np.cumsum(lengths)
        self._before = self._ends - lengths
        self._map: ChunkMap | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, numbers: np.ndarray) -> Batch:
        """Return some transitions; all numbers are from 0 to len - 1."""
        episodes = np.searchsorted(self._ends, numbers, side="right")
        steps, envs = self._starts[episodes] + numbers - self._before[episodes], self._envs[episodes]
        is_last = self._has_ended[episodes] & (steps == self._last[episodes]) if self._has_gaps else None
        return Batch(
            self._tree("observations", steps, envs),
            self._tree("actions", steps, envs),
            self._mapped.pick("rewards", steps, envs),
            self._next(steps, envs, is_last),
            self._mapped.pick("terminations", steps, envs),
        )

    def _tree(self, group: str, steps: np.ndarray, envs: np.ndarray) -> Tree:
        pick = lambda name: self._mapped.pick(name, steps, envs)  # noqa: E731
        return group_tree(self._source.leaves, group, self._spaces[group], pick)

    def _next(self, steps: np.ndarray, envs: np.ndarray, is_last: np.ndarray | None) -> Tree:
        def pick(name: str) -> np.ndarray:
            if is_last is None:
                return self._mapped.pick(name, steps + 1, envs)
            if not self._knows_final:
                return self._mapped.pick(name, steps + ~is_last, envs)
            rows = self._mapped.pick(name, steps + 1, envs)
            rows[is_last] = self._mapped.pick(f"final_{name}", steps[is_last], envs[is_last])
            return rows

        return group_tree(self._source.leaves, "observations", self._spaces["observations"], pick)

    @property
    def _mapped(self) -> ChunkMap:
        if self._map is None or self._pid != os.getpid():
            self._map, self._pid = ChunkMap(self._source), os.getpid()
        return self._map


class Transitions:
    """All transitions of a data set, by number: what PyTorch calls a map-style dataset.

    `transitions[i]` is a `Batch` of one transition without the first axis, `transitions[[3, 1, 4]]` one of several, as
    is `transitions[10:20]`.  It can be pickled: workers of a `DataLoader` open the files themselves.

    Parameters
    ----------
    files
        Those of each file.
    """

    def __init__(self, files: list[FileTransitions]):
        self.files = files
        self._ends = np.cumsum([len(file) for file in files])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, numbers: Any) -> Batch:
        if isinstance(numbers, int | np.integer):
            return _row(self.take(np.array([numbers])), 0)
        if isinstance(numbers, slice):
            numbers = np.arange(*numbers.indices(len(self)))
        numbers = np.asarray(numbers)
        return self.take(np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers.astype(np.int64))

    def __getitems__(self, numbers: list[int]) -> list[Batch]:
        """Return several transitions as PyTorch's `DataLoader` asks for them, which reads them together."""
        batch = self[numbers]
        return [_row(batch, index) for index in range(len(numbers))]

    def take(self, numbers: np.ndarray) -> Batch:
        """Return some transitions as arrays; IndexError if there is no such number."""
        total = len(self)
        if len(numbers) and not (-total <= numbers.min() and numbers.max() < total):
            raise IndexError(f"there are {total:,} transitions, got numbers {numbers.min():,} to {numbers.max():,}")
        numbers = np.where(numbers < 0, numbers + total, numbers)
        if len(self.files) == 1:
            return self.files[0].take(numbers)
        files = np.searchsorted(self._ends, numbers, side="right")
        before = self._ends - [len(file) for file in self.files]
        chosen = [np.flatnonzero(files == index) for index in range(len(self.files))]
        batches = [
            file.take(numbers[places] - before[index])
            for index, (file, places) in enumerate(zip(self.files, chosen, strict=True))
        ]
        order = np.argsort(np.concatenate(chosen), kind="stable")
        joined = lambda *parts: np.concatenate(parts)[order]  # noqa: E731
        return Batch(*(map_tree(joined, *trees) for trees in zip(*batches, strict=True)))

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Batch:
        """Draw transitions, each with the same probability, independently; ValueError if there are none."""
        if len(self) == 0:
            raise ValueError("there are no transitions to draw from")
        return self.take(np.random.default_rng(rng).integers(len(self), size=size))


def _row(batch: Batch, index: int) -> Batch:
    """Take one row out of all arrays."""
    return Batch(*(map_tree(lambda array: array[index], tree) for tree in batch))
