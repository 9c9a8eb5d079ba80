"""The envs of a loop, as the orders of one exchange need them: they write into the rank's slot by themselves."""

from collections.abc import Sequence

import numpy as np

from mpi_rollout.core.layout import ALIGNMENT
from mpi_rollout.envs.inputs import Reset, Step, Values
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.infos import add_info
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.ranks.watchdog import Work


class LoopSlice(Slice):
    """The envs of a loop.

    They write into the slot where it has room for one step.  Else, and where nobody reads the slot, they write into
    arrays of their own, which are copied into the slot row by row.
    """

    def __init__(self, exchange: Exchange, envs: LoopVectorEnv, random: RandomPolicy | None):
        super().__init__(exchange, envs, random)
        self._loop, self._copies_rows, self._first_seed = envs, False, self.env_indices.start
        envs.infos.add_one, envs.masks = add_info, self.masks
        self.step, self.faults = envs.step, envs.faults
        self.use_slot()

    def use_slot(self) -> None:
        exchange, before = self.exchange, self._loop.columns
        is_read = bool(exchange.layout.observations)
        self._copies_rows = is_read and exchange.room > 1
        if self._copies_rows:
            row = np.zeros(exchange.layout.nbytes, np.uint8)
            self._row_bytes, columns = row[ALIGNMENT:], exchange.layout.columns(row, len(exchange.envs))
            for array, old in zip(columns.observation_arrays, before.observation_arrays, strict=True):
                array[...] = old  # Rows of envs that are not reset, or that fail, stay as they are.
            self._loop.write_to(columns)
        elif is_read:
            self._loop.write_to(exchange.slot_rows[0])
        self.last_observations = self._loop.columns.observations

    def _put(self, _outputs: Reset | Step, row: int, _names: tuple[str, ...]) -> None:
        if self._copies_rows:
            self.exchange.slot_bytes[row] = self._row_bytes
        self.exchange.own_num_ended[row] = self._loop.num_ended

    def _env_at_work(self) -> Work | None:
        work = self._loop.at_work()
        if work is None:
            return None
        (place, call, patience), step = work, self.num_steps
        return Work((id(self), call), lambda: f"step {step}: {self._loop.describe_work(place)}", patience)

    def _call(self, places: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Values:
        return self._loop.call_some(places, name, *args, **kwargs)

    def _set(self, places: Sequence[int], name: str, values: Sequence[object]) -> None:
        self._loop.set_some(places, name, values)
