"""What the policy of a continued run is shown again: stored observations, and infos."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Tree, tree_of
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.replaying import Past
from mpi_rollout.policies.memory import PastRows

READ_NBYTES = 2**24  # How much of a column is read at a time.


def rows_at_a_time(columns: Iterable[Any]) -> int:
    """Return how many rows of some columns, arrays or those of a file, memory should keep at a time."""
    row_nbytes = sum(column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64)) for column in columns)
    return max(1, READ_NBYTES // max(1, row_nbytes))


class Recall:
    """What the `columns` of a file say of a run that is continued.

    Envs that are to begin an episode, the `lost` ones too, do not know their last observations.  `on_rows` is called
    before rows are read; it may raise to end the run.
    """

    def __init__(
        self, driver: Driver, past: Past, lost: Collection[int], columns: Mapping[str, Any], on_rows: Callable[[], None]
    ):
        self._space, self.num_steps, self._on_rows = driver.observation_space, past.num_steps, on_rows
        self._starts = np.where(np.isin(np.arange(driver.num_envs), [*lost]), past.num_steps + 1, past.starts)
        names = {name: name.partition("/") for name in driver.block(1).named}
        self._observed = [columns[name] for name, (group, *_) in names.items() if group == "observations"]
        self._infos = {path: columns[name] for name, (group, _, path) in names.items() if group == "infos"}

    def observations(self, step: int) -> Tree:
        """Return what the envs showed before a step."""
        return tree_of(self._space, (column[step : step + 1][0] for column in self._observed))

    def rows(self, is_whole: bool) -> Iterator[PastRows]:
        """Yield what envs show now; before that, if `is_whole`, what they have shown in the running episodes."""
        first = min(self.num_steps, int(self._starts.min())) if is_whole else self.num_steps
        num_rows = rows_at_a_time([*self._observed, *self._infos.values()])
        for step in range(first, self.num_steps + 1, num_rows):
            rows = slice(step, min(step + num_rows, self.num_steps + 1))
            self._on_rows()
            infos = {name: column[rows] for name, column in self._infos.items()}
            yield PastRows(step, self.num_steps, [column[rows] for column in self._observed], infos, self._starts)
