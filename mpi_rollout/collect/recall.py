"""What the policy of a continued run is shown again: stored observations, and infos."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.collect.replay import READ_NBYTES, Columns
from mpi_rollout.core.spaces import Tree, tree_of
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.memory import STATE, PastRows

if TYPE_CHECKING:
    from mpi_rollout.data.columns import Column  # For the root alone: imports are the job's start-up time.


def earlier_observations(driver: Driver, past: Past, columns: Columns) -> Callable[[int], Tree]:
    """Return a function that gives the observations of an earlier step, of as many as memory keeps."""
    stored = _observations(driver, columns)
    row_nbytes = max(1, sum(column[:1].nbytes for column in stored))
    first = max(0, past.num_steps - max(1, READ_NBYTES // row_nbytes))
    arrays = [column[first : past.num_steps + 1] for column in stored]

    def observations(step: int) -> Tree:
        if step < first:
            num_kept = past.num_steps - first
            raise ActionError(f"a plan of more than {num_kept} steps cannot be continued; plan fewer steps at a time")
        return tree_of(driver.observation_space, (array[step - first] for array in arrays))

    return observations


def remind(
    driver: Driver,
    past: Past,
    lost: Collection[int],
    columns: Columns,
    takes: frozenset[str],
    show: Callable[[PastRows], object],
    on_rows: Callable[[], None],
) -> None:
    """Show a policy what was stored last; one that has a state, all of the running episodes.

    Envs that are to begin an episode, the `lost` ones too, do not know their last observations.  `show` is called with
    the rows of all envs, as many at a time as memory should keep; `on_rows` before that may raise to end the run.
    """
    starts = np.where(np.isin(np.arange(driver.num_envs), [*lost]), past.num_steps + 1, past.starts)
    first = min(past.num_steps, int(starts.min())) if STATE in takes else past.num_steps
    observed, names = _observations(driver, columns), driver.block(1).named
    infos = {name.partition("/")[2]: columns[name] for name in names if name.split("/")[0] == "infos"}
    row_nbytes = max(1, sum(column[:1].nbytes for column in [*observed, *infos.values()]))
    num_rows = max(1, READ_NBYTES // row_nbytes)
    for step in range(first, past.num_steps + 1, num_rows):
        rows = slice(step, min(step + num_rows, past.num_steps + 1))
        on_rows()
        told = {name: column[rows] for name, column in infos.items()}
        read = [column[rows] for column in observed]
        show(PastRows(driver.observation_space, step, past.num_steps, read, told, starts))


def _observations(driver: Driver, columns: Columns) -> "list[Column | np.ndarray]":
    return [columns[name] for name in driver.block(1).named if name.split("/")[0] == "observations"]
