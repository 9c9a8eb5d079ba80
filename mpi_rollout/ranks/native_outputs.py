"""What natively vectorized envs give, on its way into a rank's slot: it is copied and checked, or written there."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.layout import RESULTS, Columns, SlotLayout, noun
from mpi_rollout.core.spaces import Leaf, Tree, leaves
from mpi_rollout.envs.faults import OnFault, OutputChecks
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.outputs import Casting, misfit
from mpi_rollout.envs.rollout import Rollout, RolloutColumns, as_rollout
from mpi_rollout.errors import DataError, shortened
from mpi_rollout.exchange.exchange import Exchange

OF_RESET = "observations", "infos"
OF_STEP = "observations", "rewards", "terminations", "truncations", "infos"


class NativeOutputs:
    """The outputs of natively vectorized envs of one exchange.

    Parameters
    ----------
    masks
        Takes the action masks that come with infos; None if nobody wants them.

    Attributes
    ----------
    keeps_observations
        A policy on this rank reads the observations of each step, whether or not they are sent.
    last_observations
        Those that came last, (num_envs, ...).
    """

    def __init__(self, exchange: Exchange, envs: VectorEnv, on_fault: OnFault, masks: MaskColumn | None):
        self._exchange, self._envs, self._masks, self._env_indices = exchange, envs, masks, exchange.envs
        self._checks = OutputChecks(envs.single_observation_space, on_fault)
        self._casting, self._leaves = Casting(on_fault.strict_dtypes), leaves(envs.single_observation_space)
        self._has_reset_rows = envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        self.keeps_observations = False
        self.last_observations: Tree = None
        self._envs_named = f"envs {exchange.envs.start} to {exchange.envs.stop - 1}"
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
        return None if wants_infos or self._checks else as_rollout(self._envs)

    def roll(self, rollout: Rollout, actions: np.ndarray) -> None:
        """Have the envs take all steps in one call, which no signal cuts short."""
        num_rows = len(actions)
        if num_rows not in self._columns_of_length:
            self._columns_of_length[num_rows] = self._columns_of(num_rows)
        columns = self._columns_of_length[num_rows]
        rollout.rollout(actions, columns)
        if not self._has_reset_rows:
            self._exchange.own_num_ended[:num_rows] = 0
            return
        assert columns.terminations is not None and columns.truncations is not None
        ends = columns.terminations | columns.truncations
        # With axis=1 it takes longer.
        self._exchange.own_num_ended[:num_rows] = [np.count_nonzero(row) for row in ends]

    def _columns_of(self, num_rows: int) -> RolloutColumns:
        """Return the first rows of the slot's columns; where nobody reads them, those of the ends alone."""
        if self._counts_only and not self._has_reset_rows:
            return RolloutColumns()
        if self._counts_only:
            ends = np.zeros((2, num_rows, len(self._env_indices)), np.bool_)
            return RolloutColumns(terminations=ends[0], truncations=ends[1])
        columns = [*self._exchange.slot.observation_arrays, *self._exchange.slot.results]
        return RolloutColumns(*(column[:num_rows] for column in columns))

    def put(self, outputs: Reset | Step, row: int, names: Sequence[str]) -> None:
        """Copy and check what a step or reset gave; where nobody reads it, of a fragment the first row.

        Parameters
        ----------
        names
            Of what it is to give, `OF_RESET` or `OF_STEP`.

        Raises
        ------
        DataError
            It is not what Gymnasium or the spaces promise.
        """
        if not isinstance(outputs, tuple) or len(outputs) != len(names) or not isinstance(outputs[-1], Mapping):
            call = "reset" if names is OF_RESET else "step"
            raise DataError(f"{self._envs_named}: {call} must return ({', '.join(names)}), got {_kind_of(outputs)}")
        observations, *results, infos = outputs
        slot = self._unread if self._counts_only else self._exchange.slot_rows[row]
        if row == 0 or not self._counts_only or self._checks or self.keeps_observations:
            self._copy(slot, observations, results)
            self.last_observations = slot.observations
        for place, what in self._checks.in_batch(slot.observations, slot.rewards).items() if self._checks else ():
            raise DataError(f"env {self._env_indices[place]}: {what}")
        has_ends = bool(results) and self._has_reset_rows
        ends = np.logical_or(*results[1:]) if has_ends else np.zeros(len(self._env_indices), np.bool_)
        self._exchange.own_num_ended[row] = np.count_nonzero(ends)
        if self._masks is not None:
            self._masks.write_batch(infos, ends)

    def _copy(self, slot: Columns, observations: object, results: list[np.ndarray]) -> None:
        for leaf, column in zip(self._leaves, slot.observation_arrays, strict=True):
            part = self._part(leaf, observations)
            if part.shape != column.shape or part.dtype != column.dtype:
                part = self._cast(leaf, part, column.shape)
            column[...] = part
        for leaf, column, values in zip(RESULTS, slot.results, results, strict=False):  # A reset has no results.
            array = np.asarray(values)
            if array.shape != column.shape:
                raise self._misfit(leaf, column.shape, array)
            if array.dtype.kind not in "biuf":  # The message names the first env.
                raise misfit(leaf, list(values), self._env_indices.start, TypeError("no numbers"))
            column[...] = array

    def _part(self, leaf: Leaf, observations: Any) -> np.ndarray:
        try:
            return np.asarray(leaf.of(observations))
        except (TypeError, ValueError, LookupError) as error:
            what = f"{noun(leaf)} is missing: the observations are {_kind_of(observations)}"
            raise DataError(f"{self._envs_named}: {what}") from error

    def _cast(self, leaf: Leaf, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Cast what natively vectorized envs gave in another dtype than their space's, or raise DataError."""
        why = ""
        try:
            if part.shape == shape:
                return self._casting.cast(leaf, part, self._envs_named)
        except (TypeError, ValueError) as error:
            why = f": {error}"
        raise self._misfit(leaf, shape, part, why)

    def _misfit(self, leaf: Leaf, shape: tuple[int, ...], part: np.ndarray, why: str = "") -> DataError:
        expected, got = f"{leaf.dtype} of shape {shape}", f"{part.dtype} of shape {part.shape}"
        return DataError(f"{self._envs_named}: {noun(leaf)} should be {expected}, got {got}{why}")


def _kind_of(value: object) -> str:
    """Say what a value is; of a tuple or a dict also what is in it."""
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return shortened(f"a dict of {', '.join(map(str, value))}" if isinstance(value, dict) else type(value).__name__, 80)
