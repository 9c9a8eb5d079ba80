"""Natively vectorized envs, as the orders of one exchange need them: what they give is checked and copied.

Those that can take a whole fragment in one call write it into the slot.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.columns import RESULTS, noun
from mpi_rollout.core.layout import Columns, Contents, SlotLayout
from mpi_rollout.core.spaces import Leaf, Tree, agents_of, leaves, tree_of
from mpi_rollout.envs.faults import ABORT, OnFault, OutputChecks
from mpi_rollout.envs.infos import OtherInfos
from mpi_rollout.envs.inputs import Reset, Step, Values
from mpi_rollout.envs.native import STEP_SINGLE_ENVS
from mpi_rollout.envs.outputs import Casting, misfit, one_number
from mpi_rollout.envs.rollout import Rollout, RolloutColumns, SendRecv, as_rollout
from mpi_rollout.errors import DataError, Option
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.policies.memory import PolicyView
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.slices import OF_RESET, OF_STEP, Choose, Slice
from mpi_rollout.ranks.watchdog import Work
from mpi_rollout.text import shortened


class NativeSlice(Slice):
    """Natively vectorized envs; they fail together, so none is restarted."""

    def __init__(
        self,
        exchange: Exchange,
        envs: VectorEnv,
        random: RandomPolicy | None = None,
        first_env: int = 0,
        on_fault: OnFault = ABORT,
        others: OtherInfos | None = None,
    ):
        super().__init__(exchange, envs, random, first_env)
        self.step = self._step
        self._checks = OutputChecks(envs.single_observation_space, on_fault)
        self._casting, self._leaves = Casting(on_fault.strict_dtypes), leaves(envs.single_observation_space)
        self._others = others
        self._has_agents = bool(agents_of(envs.single_observation_space))
        # The envs, if they can take all steps of a fragment in one call, and nobody looks at each step.
        has_infos = exchange.contents.infos or exchange.contents.pickles_infos
        self._rollout: Rollout | None = None if has_infos or self._checks else as_rollout(envs)
        self._in_parts = envs if isinstance(envs, SendRecv) else None
        if random is not None:
            random.are_bits_narrow = getattr(self._rollout, "takes_uint8", False)
        self._envs_named = f"envs {self.named_envs.start} to {self.named_envs.stop - 1}"
        self.use_slot()

    def use_slot(self) -> None:
        """Fill the slot that the exchange has now; where nobody reads it, columns of our own are checked."""
        self._counts_only = not self.exchange.layout.observations
        if self._rollout is not None:
            self._columns = self._rollout_columns()
        if self._counts_only:
            contents = Contents(self.envs.single_observation_space, self.envs.single_action_space)
            layout = SlotLayout(contents, self.envs.num_envs)
            self._unread = layout.columns(np.zeros(layout.nbytes, np.uint8), self.envs.num_envs)

    def use_policy(self, choose: Choose, view: PolicyView | None) -> None:
        super().use_policy(choose, view)
        self._rollout = None

    def _fill_rows(self, actions: list[np.ndarray], choices: list[np.ndarray], is_to_stop: Callable[[], bool]) -> None:
        has_masks = self.masks is not None and bool(self.masks.places)
        are_known = not choices and not has_masks and self._replaying is None
        if are_known and self._rollout is not None:
            self._roll(self._rollout, actions[0])
        elif are_known and self._in_parts is not None:
            self._send_ahead(self._in_parts, [*self._batches(actions)], is_to_stop)
        else:
            super()._fill_rows(actions, choices, is_to_stop)

    def _send_ahead(self, envs: SendRecv, batches: list[Tree], is_to_stop: Callable[[], bool]) -> None:
        """Take the steps of an order; the envs are in the next one while this rank writes what the last one gave."""
        envs.send(batches[0])
        for row in range(len(batches)):
            self._num_calls += 1
            states = envs.recv()
            has_next = row + 1 < len(batches) and not is_to_stop()
            if has_next:
                envs.send(batches[row + 1])
            try:
                self._fill(envs.outcome(states), row, OF_STEP)
            except BaseException:  # Also `interrupts.Cut`, after which a trainer may go on.
                if has_next:
                    envs.recv()  # Else the next reset would get it.
                raise
            self.num_steps += 1
            self.num_done += 1
            if not has_next:
                break

    def _roll(self, rollout: Rollout, actions: np.ndarray) -> None:
        """Take all steps of an order in one call, which no signal cuts short."""
        num_rows, num_ended, columns = len(actions), self.exchange.own_num_ended, self._columns
        self._num_calls += 1
        rollout.rollout(actions, columns)
        self.num_steps += num_rows
        self.num_done = num_rows
        if self.has_reset_rows:
            assert columns.terminations is not None and columns.truncations is not None
            ends = columns.terminations[:num_rows] | columns.truncations[:num_rows]
            num_ended[:num_rows] = [np.count_nonzero(row) for row in ends]  # With axis=1 it takes longer.
        else:
            num_ended[:num_rows] = 0

    def _rollout_columns(self) -> RolloutColumns:
        """Return the slot's columns; where nobody reads them, those of the ends alone."""
        if not self._counts_only:
            return RolloutColumns(*self.exchange.slot.observation_arrays, *self.exchange.slot.results)
        if not self.has_reset_rows:
            return RolloutColumns()
        ends = np.zeros((2, self.exchange.room, len(self.env_indices)), np.bool_)
        return RolloutColumns(terminations=ends[0], truncations=ends[1])

    def _step(self, actions: Tree, _row: int) -> Step:
        """Take a step; these envs may write to their actions."""
        self._num_calls += 1
        return self.envs.step(tree_of(self._space, [leaf.of(actions).copy() for leaf in self._action_leaves]))

    def _env_at_work(self) -> Work | None:
        step = self.num_steps
        return Work((id(self), self._num_calls), lambda: f"step {step}: {self._envs_named}")

    def _call(self, places: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Values:
        return tuple(self._all(places).call(name, *args, **kwargs))

    def _set(self, places: Sequence[int], name: str, values: Sequence[object]) -> None:
        if places:
            value_of = dict(zip(places, values, strict=True))
            self._all(places).set_attr(name, [value_of[place] for place in range(len(places))])

    def _all(self, places: Sequence[int]) -> Any:
        """Return the envs, to call methods that Gymnasium's class does not declare, of all envs."""
        if len(places) < self.envs.num_envs:
            raise AttributeError(
                f"natively vectorized envs are called all together, got {len(places)} of {self.envs.num_envs}; "
                f"use call, get_attr and set_attr of all, or {STEP_SINGLE_ENVS}"
            )
        return self.envs

    def _put(self, outputs: Reset | Step, row: int, names: tuple[str, ...]) -> None:
        """Copy and check what a step or reset gave; in a fragment that nobody reads, its first row only.

        Raises
        ------
        DataError
            It is not what Gymnasium or the spaces promise.
        """
        if not isinstance(outputs, tuple) or len(outputs) != len(names) or not isinstance(outputs[-1], Mapping):
            call = "reset" if names is OF_RESET else "step"
            raise DataError(f"{self._envs_named}: {call} must return ({', '.join(names)}), got {_kind_of(outputs)}")
        observations, *results, infos = outputs
        slot = self._unread if self._counts_only else self.exchange.slot_rows[row]
        if row == 0 or not self._counts_only or self._checks or self._choose is not None:
            self._copy(slot, observations, results)
            if self._has_agents:
                self.envs.unwrapped.write_agents(slot)
            self.last_observations = slot.observations
        for place, what in self._checks.in_batch(slot.observations, slot.rewards).items() if self._checks else ():
            raise DataError(f"env {self.named_envs[place]}: {what}")
        has_ends = bool(results) and self.has_reset_rows
        ends = np.logical_or(*results[1:]) if has_ends else np.zeros(len(self.env_indices), np.bool_)
        self.exchange.own_num_ended[row] = np.count_nonzero(ends)
        if self._others is not None:
            self._others.note(infos)
        if self.masks is not None:
            self.masks.write_batch(infos, ends)

    def _copy(self, slot: Columns, observations: object, results: list[np.ndarray]) -> None:
        for leaf, column in zip(self._leaves, slot.observation_arrays, strict=False):  # `ALIVE` of agents is behind.
            part = self._part(leaf, observations)
            if part.shape != column.shape or part.dtype != column.dtype:
                part = self._cast(leaf, part, column.shape)
            column[...] = part
        for leaf, column, values in zip(RESULTS, slot.results, results, strict=False):  # A reset has no results.
            array = np.asarray(values)
            if array.shape != column.shape:
                is_vector = leaf is RESULTS[0] and array.size > column.size
                way_out = ("; ", *one_number(array.shape[1:])) if is_vector else ()
                raise self._misfit(leaf, column.shape, array, *way_out)
            if array.dtype.kind not in "biuf":  # The message names the first env.
                raise misfit(leaf, list(values), self.named_envs.start, TypeError("no numbers"))
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

    def _misfit(self, leaf: Leaf, shape: tuple[int, ...], part: np.ndarray, *why: str | Option) -> DataError:
        expected, got = f"{leaf.dtype} of shape {shape}", f"{part.dtype} of shape {part.shape}"
        return DataError(f"{self._envs_named}: {noun(leaf)} should be {expected}, got {got}", *why)


def _kind_of(value: object) -> str:
    """Say what a value is; of a tuple or a dict also what is in it."""
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return shortened(f"a dict of {', '.join(map(str, value))}" if isinstance(value, dict) else type(value).__name__, 80)
