"""One pass over a file, in the order of its steps: each chunk is read once, and memory is bounded.

Rows of observations are one more than steps.  So the observations of the next span are read before a span is given.
Episodes are made of the spans in which they end.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np

from mpi_rollout.core.columns import TABLE, has_last_row
from mpi_rollout.core.spaces import Space
from mpi_rollout.data.episodes import Arrays, Episode, EpisodeColumns
from mpi_rollout.storage.stored_run import StoredRun

Bounds: TypeAlias = tuple[float | None, float | None]
EpisodeRows: TypeAlias = np.ndarray | np.void | Sequence[np.void]  # Rows of a table of episodes: some, or a single one.
SPAN_NBYTES = 2**24


@dataclass(frozen=True)
class StepSpan:
    """The steps `start` to `stop` - 1 of the envs from `first_env` on.

    Attributes
    ----------
    arrays
        By the names of columns, contiguous, of shape (envs, stop - start + 1, ...).  The last row is `stop` of
        observations and infos, and nothing of others.
    """

    start: int
    stop: int
    first_env: int
    arrays: dict[str, np.ndarray]


def spans_of(source: StoredRun, groups: Collection[str], start: int, stop: int, envs: slice) -> Iterator[StepSpan]:
    """Yield the spans of a file that hold steps `start` to `stop` - 1 of some envs.

    They begin where chunks of all columns do, and take SPAN_NBYTES if chunks are no larger.
    """
    names = [name for name in source.leaves if name.partition("/")[0] in groups]
    of_steps, ahead = ([name for name in names if has_last_row(name) == is_ahead] for is_ahead in (False, True))
    rows = math.lcm(*(source.chunks[name][0] for name in names)) if names else 1024
    row_nbytes = sum(source.leaves[name].nbytes for name in names) * (envs.stop - envs.start)
    rows *= max(SPAN_NBYTES // max(rows * row_nbytes, 1), 1)
    last = min(stop, source.num_steps)
    first = start - start % rows
    if first >= last:
        return
    end = min(first + rows, last)
    waiting = _read(source, ahead, first, end + (end == last), envs, end)
    for begin in range(first, last, rows):
        end, arrays = min(begin + rows, last), waiting
        if end < last:
            stop = min(end + rows, last)
            waiting = _read(source, ahead, end, stop + (stop == last), envs, stop)
            for name, array in arrays.items():
                array[:, -1] = waiting[name][:, 0]
        yield StepSpan(begin, end, envs.start, arrays | _read(source, of_steps, begin, end, envs, end))


def _read(source: StoredRun, names: list[str], start: int, stop: int, envs: slice, last: int) -> Arrays:
    """Read rows `start` to `stop` - 1 of some columns, laid env after env, into arrays with room for row `last`."""
    arrays: Arrays = {}
    for name in names:
        leaf, shape = source.leaves[name], (envs.stop - envs.start, last - start + 1)
        arrays[name] = np.empty((*shape, *leaf.shape), leaf.dtype)
        if leaf.nbytes:  # Whole rows are copied faster.
            whole = arrays[name].reshape(*shape, -1).view(np.dtype((np.void, leaf.nbytes)))[..., 0]
            source.read(name, slice(start, stop), envs, whole.T[: stop - start])
    return arrays


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
    groups: Collection[str]
    spaces: dict[str, Space | None]
    has_gaps: bool
    file: int = 0
    _begun: dict[int, Arrays] = field(default_factory=dict)  # The arrays of episodes that go on in the next span.

    def episodes(self) -> Iterator[Episode]:
        """Iterate over the episodes, while the file is read once."""
        return chain.from_iterable(self._by_span())  # Without a step in Python for each.

    def _by_span(self) -> Iterator[Iterable[Episode]]:
        ends = self.rows["start"] + self.rows["length"]
        if not len(ends):
            return
        by_start = np.argsort(self.rows["start"], kind="stable")
        starts, active, num_begun = self.rows["start"][by_start], np.zeros(0, np.int64), 0
        envs = slice(int(self.rows["env_index"].min()), int(self.rows["env_index"].max()) + 1)
        for span in spans_of(self.source, self.groups, int(starts[0]), int(ends.max()), envs):
            stop = int(np.searchsorted(starts, span.stop))
            active = np.concatenate([active, by_start[num_begun:stop]])
            num_begun, is_over = stop, ends[active] <= span.stop
            if len(active):
                yield self._of_span(span, np.sort(active[is_over]), active[~is_over])
            active = active[~is_over]

    def _of_span(self, span: StepSpan, over: np.ndarray, running: np.ndarray) -> Iterable[Episode]:
        """Make the episodes that end in a span, one when it is wanted; keep what the span has of those that go on."""
        rows, arrays = self.rows[over], span.arrays
        columns = self._columns({name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}, rows)
        first = rows["start"] - span.start
        starts = np.where(first < 0, 0, (rows["env_index"] - span.first_env) * (span.stop - span.start + 1) + first)
        starts, stops = starts.tolist(), (starts + rows["length"]).tolist()
        columns_of = [columns] * len(over)
        for place in np.flatnonzero(first < 0).tolist():
            self._keep(int(over[place]), span)
            columns_of[place] = self._columns(self._begun.pop(int(over[place])), rows)
        for index in running.tolist():
            self._keep(index, span)
        steps, states = map(slice, starts, stops), map(slice, starts, (stop + 1 for stop in stops))
        return map(Episode, columns_of, range(len(over)), steps, states)

    def _columns(self, arrays: Arrays, rows: np.ndarray) -> EpisodeColumns:
        return EpisodeColumns(arrays, rows, self.spaces, self.file, self.has_gaps)

    def _keep(self, index: int, span: StepSpan) -> None:
        """Copy what a span has of an episode that others have more of."""
        env, start, length = (int(self.rows[name][index]) for name in ("env_index", "start", "length"))
        if index not in self._begun:
            self._begun[index] = {
                name: np.empty((length + has_last_row(name), *array.shape[2:]), array.dtype)
                for name, array in span.arrays.items()
            }
        first, stop = max(start, span.start), min(start + length, span.stop)
        for name, array in self._begun[index].items():
            end = stop + has_last_row(name)  # The next observation may be the first of the next span.
            rows = slice(first - span.start, end - span.start)
            array[first - start : end - start] = span.arrays[name][env - span.first_env, rows]


def chosen(rows: np.ndarray, bounds: Mapping[str, Bounds], terminated: bool | None) -> np.ndarray:
    """Return the rows of a table of episodes whose columns are within bounds, inclusive."""
    fits = np.ones(len(rows), np.bool_)
    for name, (low, high) in bounds.items():
        if low is not None:
            fits &= rows[name] >= low
        if high is not None:
            fits &= rows[name] <= high
    if terminated is not None:
        fits &= rows["terminated"] == terminated
    return rows if fits.all() else rows[fits]  # A table of many episodes is not copied.


def check_groups(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return which groups of columns to read; ValueError for a name that there is not."""
    groups = tuple(TABLE if columns is None else columns)
    if unknown := [name for name in groups if name not in TABLE]:
        raise ValueError(f"columns should be some of {', '.join(TABLE)}; got {unknown[0]!r}")
    # If a file has them, they are the last rows of an episode.
    return (*groups, *(name for name in TABLE if name.removeprefix("final_") in groups and name not in groups))


def ordered(rows: np.ndarray) -> np.ndarray:
    """Sort rows by the ends of their episodes, then by env."""
    ends, envs = rows["start"] + rows["length"], rows["env_index"]
    is_later = (ends[1:] > ends[:-1]) | ((ends[1:] == ends[:-1]) & (envs[1:] >= envs[:-1]))
    return rows if is_later.all() else rows[np.lexsort((envs, ends))]


def as_table(rows: EpisodeRows, dtype: np.dtype) -> np.ndarray:
    """Return rows of episodes, one or several, as a table; ValueError if they are something else."""
    table = np.atleast_1d(np.asarray(rows))
    if table.ndim != 1 or not set(dtype.names or ()) <= set(table.dtype.names or ()):
        raise ValueError("episodes should be rows of data.episodes, such as data.episodes[:10]")
    return table
