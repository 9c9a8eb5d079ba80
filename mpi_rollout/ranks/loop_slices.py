"""The envs of a loop, as the orders of one exchange need them: they write into the rank's slot by themselves."""

from collections.abc import Sequence

import numpy as np

from mpi_rollout.core.layout import ALIGNMENT, Columns
from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Reset, Seeds, Step, Values
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.infos import add_info
from mpi_rollout.ranks.watchdog import Work


class LoopOutputs:
    """The envs of a loop, and where they write.

    They write into the slot where it has room for one step.  Else, and where nobody reads the slot, they write into
    arrays of their own, which are copied into the slot row by row.

    Parameters
    ----------
    masks
        Takes the action masks that come with infos; None if nobody wants them.

    Attributes
    ----------
    faults
        The restarts; whoever takes them in clears the list.
    """

    rollout = None  # A loop takes one step at a time.

    def __init__(self, exchange: Exchange, envs: LoopVectorEnv, masks: MaskColumn | None):
        self._exchange, self._loop, self._copies_rows = exchange, envs, False
        envs.infos.add_one, envs.masks = add_info, masks
        self.step, self.faults = envs.step, envs.faults
        self.use_slot()

    def use_slot(self) -> None:
        """Fill the slot that the exchange has now."""
        exchange = self._exchange
        self._copies_rows = exchange.room > 1 and bool(exchange.layout.observations)
        if not exchange.layout.observations:
            return
        if not self._copies_rows:
            self._loop.write_to(exchange.slot_rows[0])
            return
        row, before = np.zeros(exchange.layout.nbytes, np.uint8), self._loop.columns
        self._row_bytes, columns = row[ALIGNMENT:], exchange.layout.columns(row, len(exchange.envs))
        for array, old in zip(columns.observation_arrays, before.observation_arrays, strict=True):
            array[...] = old  # Rows of envs that are not reset, or that fail, stay as they are.
        self._loop.write_to(columns)

    def put(self, _outputs: Reset | Step, row: int, _names: Sequence[str] = ()) -> None:
        """Complete a row of the slot after a step or reset."""
        if self._copies_rows:
            self._exchange.slot_bytes[row] = self._row_bytes
        self._exchange.own_num_ended[row] = self._loop.num_ended

    def seeds_of(self, seed: int) -> Seeds:
        """Return the seeds of these envs, where env i of the job has seed + i."""
        return [seed + index for index in self._exchange.envs]

    @property
    def last_observations(self) -> Tree:
        """Return the last observations of the envs, (num_envs, ...), which the next step overwrites."""
        return self._loop.columns.observations

    def show(self, arrays: Sequence[np.ndarray]) -> None:
        """Take these as the last observations, for each leaf an array (num_envs, ...)."""
        for column, array in zip(self._loop.columns.observation_arrays, arrays, strict=True):
            column[...] = array

    def keep_observations(self) -> None:
        """Keep the observations of each step, for a policy on this rank; a loop always does."""

    def columns_of(self, row: int) -> Columns:
        """Return the columns whose bytes go to a row of the slot."""
        return self._loop.columns

    def at_work(self, key: int, _num_calls: int, step: int) -> Work | None:
        """Return the call of an env that is under way, in step `step` of slice `key`; for another thread to ask."""
        work = self._loop.at_work()
        if work is None:
            return None
        place, call, patience = work
        return Work((key, call), lambda: f"step {step}: {self._loop.describe_work(place)}", patience)

    def call(self, places: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Values:
        """Call a method, or get an attribute, of the envs at these places."""
        return self._loop.call_some(places, name, *args, **kwargs)

    def set(self, places: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of the envs at these places, a value each."""
        self._loop.set_some(places, name, values)
