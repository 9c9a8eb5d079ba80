"""Natively vectorized envs, as the orders of one exchange need them: what they give is checked and copied.

Those that can take a whole fragment in one call write it into the slot.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.columns import RESULTS, noun
from mpi_rollout.core.layout import Columns, SlotLayout
from mpi_rollout.core.spaces import Leaf, Tree, leaves, tree_of
from mpi_rollout.envs.faults import OnFault, OutputChecks
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Reset, Seeds, Step, Values
from mpi_rollout.envs.native import STEP_SINGLE_ENVS
from mpi_rollout.envs.outputs import Casting, misfit
from mpi_rollout.envs.rollout import Rollout, RolloutColumns, as_rollout
from mpi_rollout.envs.single_envs import Restart
from mpi_rollout.errors import DataError, shortened
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.ranks.watchdog import Work

OF_RESET = "observations", "infos"
OF_STEP = "observations", "rewards", "terminations", "truncations", "infos"


class NativeOutputs:
    """Natively vectorized envs, and where their outputs go; the same methods as those of `LoopOutputs`.

    Attributes
    ----------
    rollout
        The envs, if they can take all steps of a fragment in one call, and nobody looks at each step.
    """

    def __init__(
        self, exchange: Exchange, envs: VectorEnv, on_fault: OnFault, masks: MaskColumn | None, wants_infos: bool
    ):
        self._exchange, self._envs, self._masks, self._env_indices = exchange, envs, masks, exchange.envs
        self._checks = OutputChecks(envs.single_observation_space, on_fault)
        self._casting, self._leaves = Casting(on_fault.strict_dtypes), leaves(envs.single_observation_space)
        self._action_leaves = leaves(envs.single_action_space)
        self._has_reset_rows = envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        self._keeps_observations, self.faults = False, list[Restart]()  # None: these envs fail together.
        self.rollout: Rollout | None = None if wants_infos or self._checks else as_rollout(envs)
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

    def roll(self, actions: np.ndarray) -> None:
        """Take all steps in one call, which no signal cuts short."""
        assert self.rollout is not None
        num_rows = len(actions)
        if num_rows not in self._columns_of_length:
            self._columns_of_length[num_rows] = self._columns_of(num_rows)
        columns = self._columns_of_length[num_rows]
        self.rollout.rollout(actions, columns)
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

    def step(self, actions: Tree) -> Step:
        """Take a step; these envs may write to their actions."""
        space = self._envs.single_action_space
        return self._envs.step(tree_of(space, [leaf.of(actions).copy() for leaf in self._action_leaves]))

    def seeds_of(self, seed: int) -> Seeds:
        """Return the seed: these envs make of it what they promise."""
        return seed

    def show(self, arrays: Sequence[np.ndarray]) -> None:
        self.last_observations = tree_of(self._envs.single_observation_space, arrays)

    def keep_observations(self) -> None:
        self._keeps_observations, self.rollout = True, None

    def columns_of(self, row: int) -> Columns:
        return self._exchange.slot_rows[row]

    def at_work(self, key: int, num_calls: int, step: int) -> Work | None:
        return Work((key, num_calls), lambda: f"step {step}: {self._envs_named}")

    def call(self, places: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Values:
        return tuple(self._all(places).call(name, *args, **kwargs))

    def set(self, places: Sequence[int], name: str, values: Sequence[object]) -> None:
        if places:
            value_of = dict(zip(places, values, strict=True))
            self._all(places).set_attr(name, [value_of[place] for place in range(len(places))])

    def _all(self, places: Sequence[int]) -> Any:
        """Return the envs, to call methods that Gymnasium's class does not declare, of all envs."""
        if len(places) < self._envs.num_envs:
            raise AttributeError(
                f"natively vectorized envs are called all together, got {len(places)} of {self._envs.num_envs}; "
                f"use call, get_attr and set_attr of all, or {STEP_SINGLE_ENVS}"
            )
        return self._envs

    def put(self, outputs: Reset | Step, row: int, names: Sequence[str]) -> None:
        """Copy and check what a step or reset gave, `OF_STEP` or `OF_RESET`; in an unread fragment its first row only.

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
        if row == 0 or not self._counts_only or self._checks or self._keeps_observations:
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
