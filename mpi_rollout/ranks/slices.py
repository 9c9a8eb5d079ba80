"""A slice: one rank's envs for one exchange.  Orders act on it, and it fills the slots."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import ALIGNMENT, RESULTS, Columns, SlotLayout, noun
from mpi_rollout.core.spaces import Leaf, Tree, leaves, tree_of
from mpi_rollout.envs.faults import ABORT, OnFault, OutputChecks
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Options, Reset, Seeds, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.outputs import Casting, misfit
from mpi_rollout.envs.replaying import Past, Restoring
from mpi_rollout.envs.rollout import Rollout, RolloutColumns
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.infos import Infos, add_info, write_columns
from mpi_rollout.exchange.orders import STEPS, Command
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.watchdog import Work


class StepRestart(NamedTuple):
    """A restart of an env in row `row` of a slot, which is step `step` of the run."""

    row: int
    step: int
    message: str
    times: str


class Slice:
    """The envs of one rank that take part in one exchange.

    Parameters
    ----------
    envs
        A `LoopVectorEnv` writes into the slot, or into a row that is copied there; what others return is copied.
    infos
        "none", "all" or a mapping, see `infos`.
    policy
        The random policy of a run, which chooses where an order leaves that to the ranks, or where the envs have action
        masks; then there are no `infos`.

    Attributes
    ----------
    num_steps
        Steps that the envs have taken: the index of the step that they are in, or that comes after a reset.
    num_done
        How many steps of the last order are complete.
    restarts
        Of its envs in these steps.
    sends_restarts
        The infos of the slot tell of them.
    """

    def __init__(
        self,
        exchange: Exchange,
        envs: VectorEnv,
        infos: Infos = "none",
        on_fault: OnFault = ABORT,
        policy: RandomPolicy | None = None,
    ):
        self.exchange, self.envs, self.env_indices = exchange, envs, exchange.envs
        self.num_steps = self.num_done = self._num_calls = 0
        self._loop = envs if isinstance(envs, LoopVectorEnv) else None
        self._pickles_infos, self.sends_restarts = infos == "all", infos == "none"
        self.restarts: list[StepRestart] = []
        # A loop checks by itself.
        self._checks = None if self._loop else OutputChecks(envs.single_observation_space, on_fault)
        self._casting, self._leaves = Casting(on_fault.strict_dtypes), leaves(envs.single_observation_space)
        self._rollout: Rollout | None = None
        is_plain = infos == "none" and not self._checks and len(self._leaves) == len(exchange.action_arrays) == 1
        if isinstance(envs, Rollout) and is_plain:
            self._rollout = envs
        self._has_action_parts = isinstance(envs.single_action_space, spaces.Dict | spaces.Tuple)
        self._policy = policy
        self.masks: MaskColumn | None = None
        if policy is not None:
            self.masks = MaskColumn(envs.single_action_space, self.env_indices)
        if self._loop is not None:
            self._loop.infos.add_one, self._loop.masks = add_info, self.masks
        self.use_slot()

    def use_slot(self) -> None:
        """Fill the slot that the exchange has now.

        A loop writes into arrays of its own where a slot has room for several steps; they are then copied, row by row.
        Where nobody reads them, it has arrays of its own too.
        """
        exchange, counts_only = self.exchange, not self.exchange.layout.observations
        self._rollout_columns = dict[int, RolloutColumns]()
        if self._loop is None and counts_only:
            layout = SlotLayout(self.envs.single_observation_space, len(self.env_indices))
            self._unread = layout.columns(np.zeros(layout.nbytes, np.uint8), len(self.env_indices))
        self._has_infos = self._pickles_infos or bool(exchange.layout.infos)
        self._copies_rows = self._loop is not None and exchange.room > 1 and not counts_only
        if self._loop is None or counts_only:
            return
        if exchange.room == 1:
            self._loop.write_to(exchange.slot_rows[0])
            return
        row, before = np.zeros(exchange.layout.nbytes, np.uint8), self._loop.columns
        self._row_bytes, columns = row[ALIGNMENT:], exchange.layout.columns(row, len(self.env_indices))
        for array, old in zip(columns.observation_arrays, before.observation_arrays, strict=True):
            array[...] = old  # Rows of envs that are not reset, or that fail, stay as they are.
        self._loop.write_to(columns)

    def reset(self, seed: Seeds = None, mask: np.ndarray | None = None, options: Options = None) -> None:
        """Reset the envs, or those of a mask over all envs of the job; `seed` and `options` are for all envs too.

        An int seeds env i with seed + i, as Gymnasium does; natively vectorized envs make of it what they promise.
        """
        mine = slice(self.env_indices.start, self.env_indices.stop)
        if isinstance(seed, int):
            if self._loop is not None:
                seed = [seed + index for index in self.env_indices]
        elif seed is not None:
            seed = seed[mine]
        if isinstance(options, list):
            options = options[mine]
        if mask is not None:
            assert not isinstance(options, Sequence), "a mask comes with a dict of options, or none"
            options = {**(options or {}), "reset_mask": mask[mine]}
        self._fill(self.envs.reset(seed=seed, options=options))  # type: ignore[arg-type]  # Lists too, in a loop.

    def at_work(self) -> Work | None:
        """Return the call that is under way, of one env or of all; for another thread to ask."""
        loop = self._loop
        if loop is None:
            first, last = self.env_indices[0], self.env_indices[-1]
            return Work((id(self), self._num_calls), lambda: f"step {self.num_steps}: envs {first} to {last}")
        work = loop.at_work()
        if work is None:
            return None
        place, call, patience = work
        return Work((id(self), call), lambda: f"step {self.num_steps}: {loop.describe_work(place)}", patience)

    def do(self, command: int, arguments: tuple[Any, ...], is_to_stop: Callable[[], bool]) -> None:
        """Do what an order says, and fill the slot.

        Parameters
        ----------
        is_to_stop
            Asked after each step: a fragment is then cut short.
        """
        self.num_done = 0
        self.restarts = []
        if command in STEPS:
            self._take_steps(command, is_to_stop)
        else:
            self._num_calls += 1
            if command == Command.RESET:
                self.reset(*arguments)
            elif command == Command.RESTORE:
                self.restore(*arguments)
            else:
                self.replay(*arguments)
            self.num_done = 1
            self._note_restarts(0, self.num_steps)

    def _take_steps(self, command: int, is_to_stop: Callable[[], bool]) -> None:
        """Take the steps of a fragment, each into its row of the slot."""
        exchange, masks = self.exchange, self.masks
        if exchange.step >= 0:
            self.num_steps = exchange.step
        if self._policy is not None:
            self._policy.forget(self.num_steps)
        actions = self._chosen_actions() if command == Command.CHOOSE else exchange.own_actions()
        if masks is not None and (masks.places or exchange.num_rows > 1):  # They may come with any step.
            actions = [np.array(array) for array in actions]  # Those by masks take their place.
        try:
            if self._rollout is None or (masks is not None and masks.places):
                self._fill_rows(actions, is_to_stop)
            else:
                self._roll(self._rollout, actions[0])
        finally:
            if exchange.layout.actions:
                self._send_back(actions)

    def _fill_rows(self, actions: list[np.ndarray], is_to_stop: Callable[[], bool]) -> None:
        loop, step, masks, last_row = self._loop, self.envs.step, self.masks, self.exchange.num_rows - 1
        restarts = () if loop is None else loop.faults
        for row, batch in enumerate(self._batches(actions)):
            self._num_calls += 1
            if masks is not None and masks.places:
                self._heed_masks(actions[0][row])
            if loop is None:  # Which may write to its actions; a loop copies them by itself.
                batch = tree_of(self.envs.single_action_space, [array[row].copy() for array in actions])
            self._fill(step(batch), row)
            if restarts:
                self._note_restarts(row, self.num_steps)
            self.num_steps += 1
            self.num_done += 1
            if row < last_row and is_to_stop() and not self._has_restarted(row):
                break

    def _roll(self, rollout: Rollout, actions: np.ndarray) -> None:
        """Have the envs take all steps in one call, which no signal cuts short."""
        num_rows = len(actions)
        if num_rows not in self._rollout_columns:
            self._rollout_columns[num_rows] = self._columns_of(num_rows)
        columns = self._rollout_columns[num_rows]
        self._num_calls += 1
        rollout.rollout(actions, columns)
        assert columns.terminations is not None and columns.truncations is not None
        ends = columns.terminations | columns.truncations
        self.exchange.own_num_ended[:num_rows] = [np.count_nonzero(row) for row in ends]  # With axis=1 it takes longer.
        self.num_steps += num_rows
        self.num_done = num_rows

    def _columns_of(self, num_rows: int) -> RolloutColumns:
        """Return the first rows of the slot's columns; where nobody reads them, those of the ends alone."""
        if not self.exchange.layout.observations:
            ends = np.zeros((2, num_rows, len(self.env_indices)), np.bool_)
            return RolloutColumns(terminations=ends[0], truncations=ends[1])
        columns = [*self.exchange.slot.observation_arrays, *self.exchange.slot.results]
        return RolloutColumns(*(column[:num_rows] for column in columns))

    def _send_back(self, actions: list[np.ndarray]) -> None:
        """Put the actions that the envs have taken into the slot: ranks may have chosen them."""
        num_done = self.num_done
        for array, column in zip(actions, self.exchange.slot.action_arrays, strict=True):
            if num_done == self.exchange.room:
                column[...] = array  # The usual way, and quicker than a slice of both.
            else:
                column[:num_done] = array[:num_done]

    def _has_restarted(self, row: int) -> bool:
        """Tell whether an env was restarted in a step: its mark says so, and cannot say why a fragment ends there."""
        return bool(self.restarts) and self.restarts[-1].row == row

    def _batches(self, actions: list[np.ndarray]) -> Iterator[Tree]:
        """Yield the actions of one step after the other, views of these arrays."""
        if self._has_action_parts:
            return (tree_of(self.envs.single_action_space, rows) for rows in zip(*actions, strict=True))
        return iter(actions[0])

    def _chosen_actions(self) -> list[np.ndarray]:
        """Return random actions for the steps of an order, for each leaf an array (num_steps, num_envs, ...)."""
        assert self._policy is not None, "a run's ranks have its random policy"
        return self._policy.rows(self.num_steps, self.exchange.num_rows, self.env_indices)

    def _heed_masks(self, actions: np.ndarray) -> None:
        """Choose again, of the actions that are allowed, for the envs that have masks."""
        assert self._policy is not None and self.masks is not None
        places, packed = self.masks.given()
        if len(places):
            env_indices = places + self.env_indices.start
            actions[places] = self._policy.by_masks(self.num_steps, env_indices, packed)

    def _note_restarts(self, row: int, step: int) -> None:
        """Note which envs were restarted in a step; where nobody has asked for infos, they go with the slot."""
        if self._loop is None or not self._loop.faults:
            return
        faults = list(self._loop.faults)
        self._loop.faults.clear()
        self.restarts += [StepRestart(row, step, message, times) for _, message, times in faults]
        if self.sends_restarts:
            self.exchange.put_infos({"faults": [fault[:2] for fault in faults]}, row)

    def restore(self, past: Past) -> None:
        """Begin to take the running episodes of a run again."""
        assert self._loop is not None, "natively vectorized envs cannot be brought back"
        self._restoring = Restoring(self._loop, self.env_indices, past)
        self._fill(self._restoring.begin())

    def replay(self, step: int) -> None:
        """Take a step of the run again."""
        self.num_steps = step
        self._fill(self._restoring.step(step, self.exchange.actions))
        self.num_steps = step + 1

    def end_replay(self, lost: Sequence[int]) -> None:
        """Go on from where the run was; the envs with these indices with a new episode."""
        self._restoring.finish(lost)

    def call_some(
        self, env_indices: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[int, object]:
        """Call a method, or get an attribute, of those envs of the job that are here; return results by env index."""
        here = [index for index in env_indices if index in self.env_indices]
        places = [index - self.env_indices.start for index in here]
        if not here:
            return {}
        if self._loop is not None:
            return dict(zip(here, self._loop.call_some(places, name, *args, **kwargs), strict=True))
        return dict(zip(here, self._native_envs(len(here)).call(name, *args, **kwargs), strict=True))

    def set_some(self, env_indices: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of those envs of the job that are here, a value each."""
        pairs = zip(env_indices, values, strict=True)
        here = {index - self.env_indices.start: value for index, value in pairs if index in self.env_indices}
        if self._loop is not None:
            self._loop.set_some(list(here), name, list(here.values()))
        elif here:
            self._native_envs(len(here)).set_attr(name, [here[place] for place in range(len(here))])

    def _native_envs(self, num_envs: int) -> Any:
        """Return natively vectorized envs, to call methods that Gymnasium's class does not declare, of all envs."""
        if num_envs < self.envs.num_envs:
            raise AttributeError("natively vectorized envs are called all together, not some of them")
        return self.envs

    def render(self) -> dict[int, object]:
        """Return the frames of the envs, by env index."""
        return dict(zip(self.env_indices, self.envs.render() or (), strict=True))

    def _fill(self, outputs: Reset | Step, row: int = 0) -> None:
        """Copy into a row of the slot what the envs have not written there."""
        if self._loop is None:
            self._fill_natively(outputs, row)
        else:
            if self._copies_rows:
                self.exchange.slot_bytes[row] = self._row_bytes
            self.exchange.own_num_ended[row] = self._loop.num_ended
        if self._has_infos:
            infos, columns = outputs[-1], self.exchange.slot_rows[row].info_arrays
            if self._pickles_infos:
                self.exchange.put_infos(infos, row)
            for leaf, (values, mask) in zip(self.exchange.layout.infos, columns, strict=True):
                write_columns(infos, leaf, values, mask)

    def _fill_natively(self, outputs: Reset | Step, row: int) -> None:
        """Copy and check what natively vectorized envs gave; where nobody reads it, of a fragment the first row."""
        observations, *results, infos = outputs
        counts_only = not self.exchange.layout.observations
        slot = self._unread if counts_only else self.exchange.slot_rows[row]
        if row == 0 or not counts_only or self._checks:
            self._copy(slot, observations, results)
        for place, what in self._checks.in_batch(slot.observations, slot.rewards).items() if self._checks else ():
            raise DataError(f"env {self.env_indices[place]}: {what}")
        ends = np.logical_or(*results[1:]) if results else np.zeros(len(self.env_indices), np.bool_)  # In a reset.
        self.exchange.own_num_ended[row] = np.count_nonzero(ends)
        if self.masks is not None:
            self.masks.write_batch(infos, ends)

    def _copy(self, slot: Columns, observations: object, results: list[np.ndarray]) -> None:
        for leaf, column in zip(self._leaves, slot.observation_arrays, strict=True):
            part = leaf.of(observations)
            if part.shape != column.shape or part.dtype != column.dtype:
                part = self._cast(leaf, part, column.shape)
            column[...] = part
        for leaf, column, values in zip(RESULTS, slot.results, results, strict=False):  # A reset has no results.
            if np.asarray(values).dtype.kind not in "biuf":
                raise misfit(leaf, list(values), self.env_indices.start, TypeError("no numbers"))
            column[...] = values

    def _cast(self, leaf: Leaf, part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Cast what natively vectorized envs gave in another dtype than their space's, or raise DataError."""
        envs, why = f"envs {self.env_indices.start} to {self.env_indices.stop - 1}", ""
        try:
            if part.shape == shape:
                return self._casting.cast(leaf, part, envs)
        except (TypeError, ValueError) as error:
            why = f": {error}"
        expected = f"{leaf.dtype} of shape {shape}"
        raise DataError(f"{envs}: {noun(leaf)} should be {expected}, got {part.dtype} of shape {part.shape}{why}")
