"""Single transitions, by number or drawn at random.  Rows that only reset an env are never among them.

Rows of single envs are picked from where they lie in a file, which is mapped into memory: HDF5 reads whole chunks to
hand out a row of one.  A chunk's checksum is compared before the first row is taken from it.  Compressed chunks are
decompressed whole.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mpi_rollout.core.spaces import Space, Tree, map_tree
from mpi_rollout.data.columns import group_tree
from mpi_rollout.storage.stored_file import StoredFile
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


class MappedColumn:
    """The committed rows of one column, as they were when this was made; chunks are numbered as `ChunkReader` does."""

    def __init__(self, source: StoredFile, name: str, num_rows: int):
        self._source, self._name, self._leaf = source, name, source.leaves[name]
        with open(source.locate(), "rb") as file:
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        chunks, self._num_rows = source.stored(name), num_rows
        self._rows, self._envs, self._across = chunks.rows, chunks.sizes[1], chunks.across
        self._offsets, self._is_packed, self._is_unchecked = chunks.lay_out(self._num_rows)
        self._has_packed = bool(self._is_packed.any())

    def pick(self, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return the rows of some (step, env), an array (len(steps), ...); ContentError if a chunk is damaged."""
        chunks = steps // self._rows * self._across + envs // self._envs
        within = steps % self._rows * self._envs + envs % self._envs
        if not self._has_packed:
            return self._pick_mapped(chunks, within)
        is_packed = self._is_packed[chunks]
        values = np.empty((len(steps), *self._leaf.shape), self._leaf.dtype)
        values[~is_packed] = self._pick_mapped(chunks[~is_packed], within[~is_packed])
        for chunk in np.unique(chunks[is_packed]).tolist():
            places = np.flatnonzero(chunks == chunk)
            values[places] = self._unpacked(chunk)[np.divmod(within[places], self._envs)]
        return values

    def _pick_mapped(self, chunks: np.ndarray, within: np.ndarray) -> np.ndarray:
        unchecked = self._is_unchecked[chunks]
        if unchecked.any():
            self._check(np.unique(chunks[unchecked]))
        nbytes = self._leaf.nbytes
        if not nbytes or not len(chunks):
            return np.empty((len(chunks), *self._leaf.shape), self._leaf.dtype)
        # An element begins at each byte of the file: rows need not be aligned.
        rows = np.ndarray((len(self._bytes) - nbytes + 1,), np.dtype((np.void, nbytes)), self._bytes.data, 0, (1,))
        picked = rows[self._offsets[chunks] + within * nbytes]
        return picked.view(self._leaf.dtype).reshape(len(chunks), *self._leaf.shape)

    def _check(self, numbers: np.ndarray) -> None:
        chunks = self._source.stored(self._name)
        for number in numbers.tolist():
            chunks.compare(number, self._num_rows)
        self._is_unchecked[numbers] = False

    def _unpacked(self, chunk: int) -> np.ndarray:
        """Read the committed rows of a compressed chunk."""
        down, across = divmod(chunk, self._across)
        start, first = down * self._rows, across * self._envs
        rows = slice(start, min(start + self._rows, self._num_rows))
        return self._source.read(self._name, rows, slice(first, min(first + self._envs, self._source.config.num_envs)))


class FileTransitions:
    """All transitions of one run: those of episode after episode, in the order of a table."""

    def __init__(self, source: StoredRun, spaces: dict[str, Space | None], has_gaps: bool, episodes: np.ndarray):
        self._source, self._spaces, self._has_gaps = source, spaces, has_gaps
        self._knows_final = any(name.startswith("final_observations") for name in source.leaves)
        lengths = episodes["length"].copy()
        if self._has_gaps and not self._knows_final:
            # The observation after the last transition is not known, and learners need it.
            lengths -= episodes["truncated"] & ~episodes["terminated"] & (lengths > 0)
        self._starts, self._envs = episodes["start"], episodes["env_index"]
        self._has_ended = episodes["terminated"] | episodes["truncated"]
        self._last = self._starts + episodes["length"] - 1
        self._ends = np.cumsum(lengths)
        self._before = self._ends - lengths
        self._mapped: dict[tuple[str, int], MappedColumn] = {}
        self._pid = 0

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_mapped": {}}

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, numbers: np.ndarray) -> Batch:
        """Return some transitions; all numbers are from 0 to len - 1."""
        episodes = np.searchsorted(self._ends, numbers, side="right")
        steps, envs = self._starts[episodes] + numbers - self._before[episodes], self._envs[episodes]

        def next_of(name: str) -> np.ndarray:
            if not self._has_gaps:
                return self._pick(name, steps + 1, envs)
            is_last = self._has_ended[episodes] & (steps == self._last[episodes])
            if not self._knows_final:
                return self._pick(name, steps + ~is_last, envs)
            rows = self._pick(name, steps + 1, envs)
            rows[is_last] = self._pick(f"final_{name}", steps[is_last], envs[is_last])
            return rows

        def tree(group: str, pick: Callable[[str], np.ndarray]) -> Tree:
            return group_tree(self._source.leaves, group, self._spaces[group], pick)

        now = partial(self._pick, steps=steps, envs=envs)
        observations, actions = tree("observations", now), tree("actions", now)
        return Batch(observations, actions, now("rewards"), tree("observations", next_of), now("terminations"))

    def _pick(self, name: str, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        """Return the rows of some (step, env) of a column; DataError if it is damaged."""
        if self._pid != os.getpid():  # A forked process opens and maps the file itself.
            self._mapped, self._pid = {}, os.getpid()
        if len(self._source.parts) == 1:
            return self._pick_of(0, name, steps, envs)
        leaf = self._source.leaves[name]
        rows = np.empty((len(steps), *leaf.shape), leaf.dtype)
        for number, places in self._source.parts_of(envs):
            first_env = self._source.parts[number].envs.start
            rows[places] = self._pick_of(number, name, steps[places], envs[places] - first_env)
        return rows

    def _pick_of(self, number: int, name: str, steps: np.ndarray, envs: np.ndarray) -> np.ndarray:
        file, key = self._source.use(number), (name, number)
        if key not in self._mapped:
            num_rows, stored_name = self._source.num_rows(name), self._source.stored_name(name)
            self._mapped[key] = file.attempt(lambda: MappedColumn(file, stored_name, num_rows), name)
        return file.attempt(lambda: self._mapped[key].pick(steps, envs), name)


class Transitions:
    """All transitions of a data set, by number: what PyTorch calls a map-style dataset.

    `transitions[i]` is a `Batch` of one transition without the first axis, `transitions[[3, 1, 4]]` one of several, as
    is `transitions[10:20]`.  It can be pickled: workers of a `DataLoader` open the files themselves.
    """

    def __init__(self, files: Sequence[FileTransitions]):
        self.files = files
        self._ends = np.cumsum([len(file) for file in files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, numbers: int | slice | ArrayLike) -> Batch:
        if isinstance(numbers, int | np.integer):
            return _row(self.take(np.array([numbers])), 0)
        if isinstance(numbers, slice):
            return self.take(np.arange(*numbers.indices(len(self))))
        wanted = np.asarray(numbers)
        return self.take(np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted.astype(np.int64))

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
        chosen = [np.flatnonzero(files == index) for index in range(len(self.files))]
        batches = [
            file.take(numbers[places] - (end - len(file)))
            for file, end, places in zip(self.files, self._ends, chosen, strict=True)
        ]
        order = np.argsort(np.concatenate(chosen), kind="stable")
        return Batch(*map_tree(lambda *parts: np.concatenate(parts)[order], *batches))

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Batch:
        """Draw transitions, each with the same probability, independently; ValueError if there are none."""
        if len(self) == 0:
            raise ValueError("there are no transitions to draw from")
        return self.take(np.random.default_rng(rng).integers(len(self), size=size))


def _row(batch: Batch, index: int) -> Batch:
    """Take one row out of all arrays."""
    return Batch(*map_tree(lambda array: array[index], batch))
