"""What natively vectorized envs give, on its way into a rank's slot: it is copied and checked, or written there."""

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import RESULTS, Columns, SlotLayout, noun
from mpi_rollout.core.spaces import Leaf, leaves
from mpi_rollout.envs.faults import OnFault, OutputChecks
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.outputs import Casting, misfit
from mpi_rollout.envs.rollout import Rollout, RolloutColumns
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.exchange import Exchange


class NativeOutputs:
    """The outputs of natively vectorized envs of one exchange.

    Parameters
    ----------
    masks
        Takes the action masks that come with infos; None if nobody wants them.
    """

    def __init__(self, exchange: Exchange, envs: VectorEnv, on_fault: OnFault, masks: MaskColumn | None):
        self._exchange, self._envs, self._masks, self._env_indices = exchange, envs, masks, exchange.envs
        self._checks = OutputChecks(envs.single_observation_space, on_fault)
        self._casting, self._leaves = Casting(on_fault.strict_dtypes), leaves(envs.single_observation_space)
        self.use_slot()

    def use_slot(self) -> None:
        """Fill the slot that the exchange has now; where nobody reads it, columns of our own are checked."""
        self._counts_only = not self._exchange.layout.observations
        self._columns_of_length = dict[int, RolloutColumns]()
        layout, num_envs = SlotLayout(self._envs.single_observation_space, len(self._env_indices)), self._envs.num_envs
        if self._counts_only:
            self._unread = layout.columns(np.zeros(layout.nbytes, np.uint8), num_envs)

    def rollout_of(self, wants_infos: bool) -> Rollout | None:
        """Return the envs if they can take all steps of a fragment in one call, and nobody looks at each step."""
        is_plain = not wants_infos and not self._checks and len(self._leaves) == len(self._exchange.action_arrays) == 1
        return self._envs if isinstance(self._envs, Rollout) and is_plain else None

    def roll(self, rollout: Rollout, actions: np.ndarray) -> None:
        """Have the envs take all steps in one call, which no signal cuts short."""
        num_rows = len(actions)
        if num_rows not in self._columns_of_length:
            self._columns_of_length[num_rows] = self._columns_of(num_rows)
        columns = self._columns_of_length[num_rows]
        rollout.rollout(actions, columns)
        assert columns.terminations is not None and columns.truncations is not None
        ends = columns.terminations | columns.truncations
        # With axis=1 it takes longer.
        self._exchange.own_num_ended[:num_rows] = [np.count_nonzero(row) for row in ends]

    def _columns_of(self, num_rows: int) -> RolloutColumns:
        """Return the first rows of the slot's columns; where nobody reads them, those of the ends alone."""
        if self._counts_only:
            ends = np.zeros((2, num_rows, len(self._env_indices)), np.bool_)
            return RolloutColumns(terminations=ends[0], truncations=ends[1])
        columns = [*self._exchange.slot.observation_arrays, *self._exchange.slot.results]
        return RolloutColumns(*(column[:num_rows] for column in columns))

    def put(self, outputs: Reset | Step, row: int) -> None:
        """Copy and check what a step or reset gave; where nobody reads it, of a fragment the first row.

        Raises
        ------
        DataError
            It is not what the spaces promise.
        """
        observations, *results, infos = outputs
        slot = self._unread if self._counts_only else self._exchange.slot_rows[row]
        if row == 0 or not self._counts_only or self._checks:
            self._copy(slot, observations, results)
        for place, what in self._checks.in_batch(slot.observations, slot.rewards).items() if self._checks else ():
            raise DataError(f"env {self._env_indices[place]}: {what}")
        ends = np.logical_or(*results[1:]) if results else np.zeros(len(self._env_indices), np.bool_)  # In a reset.
        self._exchange.own_num_ended[row] = np.count_nonzero(ends)
        if self._masks is not None:
            self._masks.write_batch(infos, ends)

    def _copy(self, slot: Columns, observations: object, results: list[np.ndarray]) -> None:
        for leaf, column in zip(self._leaves, slot.observation_arrays, strict=True):
            part = leaf.of(observations)
            if part.shape != column.shape or part.dtype != column.dtype:
                part = self._cast(leaf, part, column.shape)
            column[...] = part
        for leaf, column, values in zip(RESULTS, slot.results, results, strict=False):  # A reset has no results.
            if np.asarray(values).dtype.kind not in "biuf":
                raise misfit(leaf, list(values), self._env_indices.start, TypeError("no numbers"))
            column[...] = values

    def _cast(self, leaf: Leaf, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Cast what natively vectorized envs gave in another dtype than their space's, or raise DataError."""
        envs, why = f"envs {self._env_indices.start} to {self._env_indices.stop - 1}", ""
        try:
            if part.shape == shape:
                return self._casting.cast(leaf, part, envs)
        except (TypeError, ValueError) as error:
            why = f": {error}"
        expected = f"{leaf.dtype} of shape {shape}"
        raise DataError(f"{envs}: {noun(leaf)} should be {expected}, got {part.dtype} of shape {part.shape}{why}")
