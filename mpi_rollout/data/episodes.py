"""Episodes: the transitions of one env from a reset to an end, with every observation that it gave.

Episodes are read many at a time.  What is read is laid env after env, so that each array of an episode is a slice of
it: contiguous, and no copy.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from mpi_rollout.core.columns import FURTHER, TABLE, has_last_row
from mpi_rollout.core.spaces import Space, Tree
from mpi_rollout.data.columns import group_tree
from mpi_rollout.data.passing import StepSpan, parts_of
from mpi_rollout.data.rlds import steps_rlds
from mpi_rollout.storage.stored_run import StoredRun

FEW_NBYTES = 64
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class EpisodeColumns:
    """Rows of some episodes, one after the other, by the names of columns.

    Attributes
    ----------
    arrays
        Of observations and infos there is one row more for each env, after its last.
    rows
        Of the table of episodes.
    has_gaps
        The rows of an episode's observations are not followed by its last one: it is in `final_observations`.
    """

    arrays: Arrays
    rows: np.ndarray
    spaces: dict[str, Space | None]
    file: int
    has_gaps: bool

    @cached_property
    def single_observations(self) -> np.ndarray | None:
        """The observations, if they are one array, in which each episode is whole."""
        return None if self.has_gaps else self.arrays.get("observations")


class Episode:
    """One episode; its arrays are views of memory that it shares with others: copy what you keep.

    Attributes
    ----------
    length
        The number of its transitions.
    """

    __slots__ = ("_columns", "_index", "_place", "_seen_place", "length")

    def __init__(self, columns: EpisodeColumns, index: int, place: int, seen_place: int, length: int):
        self._columns, self._index, self._place, self._seen_place = columns, index, place, seen_place
        self.length = length

    def __repr__(self) -> str:
        what = f"env {self.env_index}, start {self.start:,}, length {self.length:,}, return {self.return_:g}"
        return f"<Episode: {what}, seed {self.seed}>"

    @property
    def row(self) -> np.void:
        """Its row of `data.episodes`."""
        return self._columns.rows[self._index]

    @property
    def env_index(self) -> int:
        """The place of its env, from 0 on."""
        return int(self.row["env_index"])

    @property
    def start(self) -> int:
        """The step of its first transition."""
        return int(self.row["start"])

    def __len__(self) -> int:
        return self.length

    @property
    def return_(self) -> float:
        """The sum of its rewards."""
        return float(self.row["return"])

    @property
    def seed(self) -> int:
        """What its env was reset with; -1 where episodes have no seeds of their own."""
        return int(self.row["seed"])

    @property
    def terminated(self) -> bool:
        """Whether the env has ended it."""
        return bool(self.row["terminated"])

    @property
    def truncated(self) -> bool:
        """Whether it was cut by a limit, or by a fault.  An episode that the run's end has cut is not `truncated`."""
        return bool(self.row["truncated"])

    @property
    def faulted(self) -> bool:
        """Whether a failure of the env has ended it."""
        return bool(self.row["faulted"])

    @property
    def file(self) -> int:
        """The index of its file in `data.paths`."""
        return self._columns.file

    @property
    def knows_final(self) -> bool:
        """Whether the last row of `observations` is what the env gave; if not, it repeats the one before."""
        return not self._has_gap or any(name.startswith("final_observations") for name in self._columns.arrays)

    @property
    def observations(self) -> Tree:
        """The (length + 1, ...) observations, of which the last came with the last transition."""
        columns = self._columns
        if columns.single_observations is not None:  # Short episodes are many: this is half a microsecond.
            return columns.single_observations[self._seen_place : self._seen_place + self.length + 1]
        return group_tree(columns.arrays, "observations", columns.spaces["observations"], self._seen)

    @property
    def actions(self) -> Tree:
        """The (length, ...) actions."""
        return self._slice("actions") if "actions" in self._columns.arrays else self._tree("actions")

    @property
    def rewards(self) -> np.ndarray:
        """The (length,) rewards, float64."""
        return self._slice("rewards")

    @property
    def terminations(self) -> np.ndarray:
        """The (length,) flags, of which the last may be True."""
        return self._slice("terminations")

    @property
    def truncations(self) -> np.ndarray:
        """The (length,) flags, of which the last may be True."""
        return self._slice("truncations")

    @property
    def extras(self) -> Tree:
        """What the policy gave besides actions: a dict by name of arrays (length, ...)."""
        return self._tree("extras")

    @property
    def further(self) -> dict[str, np.ndarray]:
        """The other columns that the file has: arrays (length, ...) by name."""
        return {name: self._slice(name) for name in FURTHER if name in self._columns.arrays}

    @property
    def infos(self) -> Tree:
        """What was stored of the infos: a dict by name of arrays (length + 1, ...), the first from the reset.

        Beside NAME is the mask `_NAME`: whether the env gave it.
        """
        return group_tree(self._columns.arrays, "infos", None, self._seen)

    def steps_rlds(self) -> Iterator[dict[str, Any]]:
        """Yield its length + 1 steps as RLDS has them; see `data.rlds.steps_rlds`."""
        return steps_rlds(self)

    @property
    def _has_gap(self) -> bool:
        return self._columns.has_gaps and (self.terminated or self.truncated)

    def _tree(self, group: str) -> Tree:
        return group_tree(self._columns.arrays, group, self._columns.spaces.get(group), self._slice)

    def _slice(self, name: str) -> np.ndarray:
        return self._columns.arrays[name][self._place : self._place + self.length]

    def _seen(self, name: str) -> np.ndarray:
        """Return observations or infos, with the last one where it belongs."""
        rows = self._columns.arrays[name][self._seen_place : self._seen_place + self.length + 1]
        if not self._has_gap:
            return rows
        rows = rows.copy()
        final = self._columns.arrays.get(f"final_{name}")
        if final is not None:
            rows[-1] = final[self._place + self.length - 1]
        elif name.startswith("infos"):
            rows[-1] = np.zeros((), rows.dtype)
        elif self.length:
            rows[-1] = rows[-2]
        return rows


@dataclass
class Reading:
    """Reads some episodes of one file, in the order of their ends.

    Parameters
    ----------
    rows
        Of `data.episodes`, sorted by their ends.
    """

    source: StoredRun
    rows: np.ndarray
    groups: Iterable[str]
    spaces: dict[str, Space | None]
    has_gaps: bool
    file: int = 0
    _begun: dict[int, Arrays] = field(default_factory=dict)  # Of episodes that go on in the next part.

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes, while the file is read once."""
        return chain.from_iterable(self._by_part())

    def _by_part(self) -> Iterator[Iterable[Episode]]:
        """Yield the episodes that end in a part of the file, part after part."""
        ends = self.rows["start"] + self.rows["length"]
        if not len(ends):
            return
        by_start = np.argsort(self.rows["start"], kind="stable")
        starts, active, num_begun = self.rows["start"][by_start], np.zeros(0, np.int64), 0
        envs = slice(int(self.rows["env_index"].min()), int(self.rows["env_index"].max()) + 1)
        for part in parts_of(self.source, self.groups, int(starts[0]), int(ends.max()), envs):
            stop = int(np.searchsorted(starts, part.stop))
            active = np.concatenate([active, by_start[num_begun:stop]])
            num_begun = stop
            if not len(active):
                continue
            is_over = ends[active] <= part.stop
            yield self._of_part(part, np.sort(active[is_over]), active[~is_over])
            active = active[~is_over]

    def _of_part(self, part: StepSpan, over: np.ndarray, running: np.ndarray) -> Iterable[Episode]:
        """Make the episodes that end in a part, one when it is wanted; keep what the part has of those that go on."""
        arrays = {name: _by_env(array) for name, array in part.arrays.items()}
        num_rows = part.stop - part.start
        columns = EpisodeColumns(
            {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()},
            self.rows, self.spaces, self.file, self.has_gaps,
        )  # fmt: skip
        rows = self.rows[over]
        envs, first = rows["env_index"] - part.first_env, rows["start"] - part.start
        has_begun = first < 0
        places = [np.where(has_begun, 0, envs * size + first).tolist() for size in (num_rows, num_rows + 1)]
        columns_of = [columns] * len(over)
        for place in np.flatnonzero(has_begun).tolist():
            index = int(over[place])
            columns_of[place] = self._joined(index, part, arrays)
        for index in running.tolist():
            self._keep(index, part, arrays)
        return map(Episode, columns_of, over.tolist(), *places, rows["length"].tolist())

    def _keep(self, index: int, part: StepSpan, arrays: Arrays) -> Arrays:
        """Copy what a part has of an episode that others have more of; return its arrays so far."""
        env, start, length = (int(self.rows[name][index]) for name in ("env_index", "start", "length"))
        if index not in self._begun:
            self._begun[index] = {
                name: np.empty((length + has_last_row(name), *array.shape[2:]), array.dtype)
                for name, array in arrays.items()
            }
        first, stop = max(start, part.start), min(start + length, part.stop)
        for name, array in self._begun[index].items():
            end = stop + has_last_row(name)  # The next observation may be the first of the next part.
            rows = slice(first - part.start, end - part.start)
            array[first - start : end - start] = arrays[name][env - part.first_env, rows]
        return self._begun[index]

    def _joined(self, index: int, part: StepSpan, arrays: Arrays) -> EpisodeColumns:
        """Return the whole of an episode that ends in a part."""
        self._keep(index, part, arrays)
        return EpisodeColumns(self._begun.pop(index), self.rows, self.spaces, self.file, self.has_gaps)


def _by_env(array: np.ndarray) -> np.ndarray:
    """Return rows of envs as envs of rows, contiguous."""
    shape, nbytes = array.shape, array[0, 0].nbytes
    if not 0 < nbytes <= FEW_NBYTES:
        return np.ascontiguousarray(array.swapaxes(0, 1))
    whole = array.reshape(*shape[:2], -1).view(np.dtype((np.void, nbytes)))[..., 0]  # A row at a time.
    return np.ascontiguousarray(whole.T).view(array.dtype).reshape(shape[1], shape[0], *shape[2:])


def chosen(
    rows: np.ndarray,
    min_return: float | None = None,
    max_return: float | None = None,
    min_length: int | None = 1,
    max_length: int | None = None,
    terminated: bool | None = None,
) -> np.ndarray:
    """Return the rows of a table of episodes that fit; bounds are inclusive."""
    fits = np.ones(len(rows), np.bool_)
    for name, low, high in (("return", min_return, max_return), ("length", min_length, max_length)):
        if low is not None:
            fits &= rows[name] >= low
        if high is not None:
            fits &= rows[name] <= high
    if terminated is not None:
        fits &= rows["terminated"] == terminated
    return rows[fits]


def check_groups(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return which groups of columns to read; ValueError for a name that there is not."""
    groups = tuple(TABLE if columns is None else columns)
    if unknown := [name for name in groups if name not in TABLE]:
        raise ValueError(f"columns should be some of {', '.join(TABLE)}; got {unknown[0]!r}")
    # Where a file has them, they are the last rows of an episode.
    return (*groups, *(name for name in TABLE if name.removeprefix("final_") in groups and name not in groups))


def ordered(rows: np.ndarray) -> np.ndarray:
    """Sort rows by the ends of their episodes, then by env."""
    ends, envs = rows["start"] + rows["length"], rows["env_index"]
    is_later = (ends[1:] > ends[:-1]) | ((ends[1:] == ends[:-1]) & (envs[1:] >= envs[:-1]))
    return rows if is_later.all() else rows[np.lexsort((envs, ends))]


def as_table(rows: Any, dtype: np.dtype) -> np.ndarray:
    """Return rows of episodes, one or several, as a table; ValueError if they are something else."""
    table = np.atleast_1d(np.asarray(rows))
    if table.dtype.names is None or not set(dtype.names or ()) <= set(table.dtype.names) or table.ndim != 1:
        raise ValueError("episodes should be rows of data.episodes, such as data.episodes[:10]")
    return table
