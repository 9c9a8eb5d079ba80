"""A slice: one rank's envs for one exchange.  Orders act on it, and it fills the slots."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import ALIGNMENT
from mpi_rollout.core.spaces import Tree, leaves, tree_of
from mpi_rollout.envs.faults import ABORT, OnFault
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Options, Reset, Seeds, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import STEP_SINGLE_ENVS
from mpi_rollout.envs.native_replaying import restoring_of
from mpi_rollout.envs.replaying import Past
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.infos import TRAINERS_WAY_OUT, Infos, add_info, write_columns
from mpi_rollout.exchange.orders import STEPS, Command
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.native_outputs import OF_RESET, OF_STEP, NativeOutputs
from mpi_rollout.ranks.rank_policy import RankPolicy
from mpi_rollout.ranks.watchdog import Work

RUNS_WAY_OUT = "give --store-infos the type that the envs have, or leave this info out"


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
        masks.
    keeps_infos
        The infos are stored: they are of a run, not of a trainer.

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
        keeps_infos: bool = False,
    ):
        self.exchange, self.envs, self.env_indices = exchange, envs, exchange.envs
        self.num_steps = self.num_done = self._num_calls = 0
        self._loop = envs if isinstance(envs, LoopVectorEnv) else None
        self._pickles_infos, self.sends_restarts = infos == "all", infos != "all"
        self._way_out = RUNS_WAY_OUT if keeps_infos else TRAINERS_WAY_OUT
        self.restarts: list[StepRestart] = []
        self._has_action_parts = isinstance(envs.single_action_space, spaces.Dict | spaces.Tuple)
        self._policy = policy
        self._acting: RankPolicy | None = None
        self._is_asking = False  # The policy, and no env, is at work.
        self.masks: MaskColumn | None = None
        if policy is not None:
            self.masks = MaskColumn(envs.single_action_space, self.env_indices)
        # A loop checks by itself.
        self._outputs = None if self._loop else NativeOutputs(exchange, envs, on_fault, self.masks)
        self._rollout = None if self._outputs is None else self._outputs.rollout_of(infos != "none")
        if policy is not None:
            policy.are_bits_narrow = getattr(self._rollout, "takes_uint8", False)
        if self._loop is not None:
            self._loop.infos.add_one, self._loop.masks = add_info, self.masks
        self.use_slot()

    def use_slot(self) -> None:
        """Fill the slot that the exchange has now.

        A loop writes into arrays of its own where a slot has room for several steps; they are then copied, row by row.
        Where nobody reads them, it has arrays of its own too.
        """
        exchange, counts_only = self.exchange, not self.exchange.layout.observations
        if self._outputs is not None:
            self._outputs.use_slot()
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

    def use_policy(self, policy: RankPolicy) -> None:
        """Have this policy choose the actions where an order leaves that to the ranks."""
        self._acting, self._rollout = policy, None
        if self._outputs is not None:
            self._outputs.keeps_observations = True

    def seed_policy(self, seed: int) -> None:
        """Have the policy draw from this seed from now on."""
        assert self._acting is not None, "it was given one"
        self._acting.seed(seed)

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
        if self._is_asking:  # A policy may be slow.
            return None
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
        is_acting = command == Command.CHOOSE and self._acting is not None
        if is_acting:
            actions = self._room_for_actions()
        else:
            actions = self._chosen_actions() if command == Command.CHOOSE else exchange.own_actions()
        is_rolled = self._rollout is not None and not (masks is not None and masks.places)
        if masks is not None and (masks.places or exchange.num_rows > 1) and not is_rolled:
            # Those by masks, which may come, take their place.
            dtypes = [leaf.dtype for leaf in leaves(self.envs.single_action_space)]
            actions = [np.array(array, dtype) for array, dtype in zip(actions, dtypes, strict=True)]
        try:
            if is_rolled:
                self._roll(actions[0])
            else:
                self._fill_rows(actions, is_to_stop, self._acted(actions) if is_acting else self._batches(actions))
        finally:
            if exchange.layout.actions:
                self._send_back(actions)

    def _fill_rows(self, actions: list[np.ndarray], is_to_stop: Callable[[], bool], batches: Iterator[Tree]) -> None:
        loop, step, masks, last_row = self._loop, self.envs.step, self.masks, self.exchange.num_rows - 1
        restarts = () if loop is None else loop.faults
        for row, batch in enumerate(batches):
            self._num_calls += 1
            if masks is not None and masks.places:
                self._heed_masks(actions[0][row])
            if loop is None:  # Others than loops may write to their actions.
                batch = self._copies(actions, row)
            self._fill(step(batch), row, OF_STEP)
            if restarts:
                self._note_restarts(row, self.num_steps)
            self.num_steps += 1
            self.num_done += 1
            if row < last_row and is_to_stop() and not self._has_restarted(row):
                break

    def _copies(self, actions: list[np.ndarray], row: int) -> Tree:
        if not self._has_action_parts:
            return actions[0][row].copy()
        return tree_of(self.envs.single_action_space, [array[row].copy() for array in actions])

    def _roll(self, actions: np.ndarray) -> None:
        assert self._outputs is not None and self._rollout is not None
        self._num_calls += 1
        self._outputs.roll(self._rollout, actions)
        self.num_steps += len(actions)
        self.num_done = len(actions)

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

    def _acted(self, actions: list[np.ndarray]) -> Iterator[Tree]:
        """Ask the policy before each step, with what the step before has led to; yield the actions of the step."""
        assert self._acting is not None
        for row in range(self.exchange.num_rows):
            self._is_asking = True
            try:
                arrays, extras = self._acting.choose(self._last_observations(), self.env_indices, self.num_steps)
            finally:
                self._is_asking = False
            for array, chosen in zip(actions, arrays, strict=True):
                array[row] = chosen
            if self.exchange.layout.extras:  # A loop's row is copied into the slot as a whole.
                columns = self.exchange.slot_rows[row] if self._loop is None else self._loop.columns
                for column, values in zip(columns.extra_arrays, extras, strict=True):
                    column[...] = values
            yield tree_of(self.envs.single_action_space, [array[row] for array in actions])

    def _last_observations(self) -> Tree:
        """Return the last observations of the envs, (num_envs, ...), which the next step overwrites."""
        if self._loop is not None:
            return self._loop.columns.observations
        assert self._outputs is not None
        return self._outputs.last_observations

    def show(self, arrays: Sequence[np.ndarray]) -> None:
        """Have the policy see these as the last observations of all envs of the job, an array for each leaf.

        Envs that were brought back show theirs, but for those that are to begin an episode.
        """
        mine = [array[self.env_indices.start : self.env_indices.stop] for array in arrays]
        if self._outputs is not None:
            self._outputs.last_observations = tree_of(self.envs.single_observation_space, mine)
        elif self._loop is not None:
            for column, array in zip(self._loop.columns.observation_arrays, mine, strict=True):
                column[...] = array

    def _room_for_actions(self) -> list[np.ndarray]:
        shape = self.exchange.num_rows, len(self.env_indices)
        return [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in leaves(self.envs.single_action_space)]

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
        """Note which envs were restarted in a step; where infos do not say it, they go with the slot."""
        if self._loop is None or not self._loop.faults:
            return
        faults = list(self._loop.faults)
        self._loop.faults.clear()
        self.restarts += [StepRestart(row, step, message, times) for _, message, times in faults]
        if self.sends_restarts:
            self.exchange.put_infos({"faults": [fault[:2] for fault in faults]}, row)

    def restore(self, past: Past) -> None:
        """Begin to take the running episodes of a run again."""
        self._restoring = restoring_of(self.envs, self.env_indices, past)
        self._fill(self._restoring.begin())

    def replay(self, step: int) -> None:
        """Take a step of the run again."""
        self.num_steps = step
        self._fill(self._restoring.step(step, self.exchange.actions), names=OF_STEP)
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
            raise AttributeError(
                f"natively vectorized envs are called all together, got {num_envs} of {self.envs.num_envs}; use call, "
                f"get_attr and set_attr of all, or {STEP_SINGLE_ENVS}"
            )
        return self.envs

    def render(self) -> dict[int, object]:
        """Return the frames of the envs, by env index."""
        return dict(zip(self.env_indices, self.envs.render() or (), strict=True))

    def _fill(self, outputs: Reset | Step, row: int = 0, names: Sequence[str] = OF_RESET) -> None:
        """Copy into a row of the slot what the envs have not written there."""
        if self._loop is not None:
            if self._copies_rows:
                self.exchange.slot_bytes[row] = self._row_bytes
            self.exchange.own_num_ended[row] = self._loop.num_ended
        elif self._outputs is not None:
            self._outputs.put(outputs, row, names)
        if self._has_infos:
            infos, columns = outputs[-1], self.exchange.slot_rows[row].info_arrays
            if self._pickles_infos:
                self.exchange.put_infos(infos, row)
            for leaf, (values, mask) in zip(self.exchange.layout.infos, columns, strict=True):
                write_columns(infos, leaf, values, mask, self.env_indices.start, self._way_out)
