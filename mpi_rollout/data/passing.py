"""One pass over a file, in the order of its steps: each chunk is read once, and memory is bounded.

Rows of observations are one more than steps.  So the observations of the next part are read before a part is given.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mpi_rollout.core.columns import has_last_row
from mpi_rollout.data.columns import columns_of
from mpi_rollout.storage.stored_run import StoredRun

PART_NBYTES = 2**24


@dataclass(frozen=True)
class StepSpan:
    """The steps `start` to `stop` - 1 of all envs, or of those from `first_env` on.

    Attributes
    ----------
    arrays
        By the names of columns, of shape (stop - start, envs, ...); observations and infos have the row `stop` as well.
    """

    start: int
    stop: int
    first_env: int
    arrays: dict[str, np.ndarray]


def rows_per_part(source: StoredRun, names: Iterable[str], num_envs: int) -> int:
    """Return how many steps to read at a time: whole chunks of all columns, in PART_NBYTES if chunks are no larger."""
    names = list(names)
    rows = math.lcm(*(source.chunks[name][0] for name in names)) if names else 1024
    row_nbytes = sum(source.leaves[name].nbytes for name in names) * num_envs
    return rows * max(PART_NBYTES // max(rows * row_nbytes, 1), 1)


def parts_of(
    source: StoredRun, groups: Iterable[str], start: int = 0, stop: int | None = None, envs: slice | None = None
) -> Iterator[StepSpan]:
    """Yield the parts of a file that hold steps `start` to `stop` - 1 of some envs, cut where chunks begin."""
    envs = slice(0, source.config.num_envs) if envs is None else envs
    names = columns_of(groups, source.leaves)
    of_steps, ahead = ([name for name in names if has_last_row(name) == is_ahead] for is_ahead in (False, True))
    rows = rows_per_part(source, names, envs.stop - envs.start)
    last = source.num_steps if stop is None else min(stop, source.num_steps)
    first = start - start % rows
    if first >= last:
        return
    waiting = _read(source, ahead, first, min(first + rows, last + 1), envs, 1)
    for begin in range(first, last, rows):
        end = min(begin + rows, last)
        arrays = {name: array[: end - begin + 1] for name, array in waiting.items()}
        if end - begin == rows:
            waiting = _read(source, ahead, end, min(end + rows, last + 1), envs, 1)
            for name, array in arrays.items():
                array[-1] = waiting[name][0]
        yield StepSpan(begin, end, envs.start, arrays | _read(source, of_steps, begin, end, envs, 0))


def _read(source: StoredRun, names: list[str], start: int, stop: int, envs: slice, more: int) -> dict[str, np.ndarray]:
    """Read rows of some columns into arrays that have room for `more` rows."""
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        leaf = source.leaves[name]
        array = np.empty((stop - start + more, envs.stop - envs.start, *leaf.shape), leaf.dtype)
        if stop > start:
            source.read_into(name, slice(start, stop), envs, array)
        arrays[name] = array
    return arrays
