"""A slice: one rank's envs for one exchange.  Orders act on it, and it fills the slots."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Tree, leaves, tree_of
from mpi_rollout.envs.faults import ABORT, OnFault
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Info, Options, Reset, Seeds, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.replaying import Past, ReplayingEnvs
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.infos import TRAINERS_WAY_OUT, Infos, write_columns
from mpi_rollout.exchange.orders import Command
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.loop_slices import LoopOutputs
from mpi_rollout.ranks.native_slices import OF_RESET, OF_STEP, NativeOutputs
from mpi_rollout.ranks.watchdog import Work

RUNS_WAY_OUT = "give --store-infos the type that the envs have, or leave this info out"


class StepRestart(NamedTuple):
    """A restart of an env in row `row` of a slot, which is step `step` of the run."""

    row: int
    step: int
    message: str
    times: str


Choose = Callable[[Tree, range, int], tuple[list[np.ndarray], list[np.ndarray]]]


class Slice:
    """The envs of one rank that take part in one exchange.

    Parameters
    ----------
    infos
        "none", "all" or a mapping, see `infos`.
    policy
        The random policy of a run: it chooses where an order leaves that to the ranks, or where envs have action masks.
    keeps_infos
        The infos are stored: they are of a run, not of a trainer.

    Attributes
    ----------
    num_steps
        Steps that the envs have taken: the index of the step that they are in, or that comes after a reset.
    num_done, restarts
        How many steps of the last order are complete; the restarts of envs in these steps.
    sends_restarts
        The infos of the slot report them.
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
        self._pickles_infos, self.sends_restarts = infos == "all", infos != "all"
        self._way_out = RUNS_WAY_OUT if keeps_infos else TRAINERS_WAY_OUT
        self.restarts: list[StepRestart] = []
        self._has_action_parts = isinstance(envs.single_action_space, spaces.Dict | spaces.Tuple)
        self._policy = policy
        self._choose: Choose | None = None
        self._is_asking = False  # The policy, and no env, is at work.
        self._is_replaying = False  # Steps are taken again.
        self._replaying: ReplayingEnvs | None = None  # Takes those of running episodes.
        self.masks = None if policy is None else MaskColumn(envs.single_action_space, self.env_indices)
        self._outputs: LoopOutputs | NativeOutputs
        if isinstance(envs, LoopVectorEnv):  # It checks by itself.
            self._outputs = LoopOutputs(exchange, envs, self.masks)
        else:
            self._outputs = NativeOutputs(exchange, envs, on_fault, self.masks, infos != "none")
        if policy is not None:
            policy.are_bits_narrow = getattr(self._outputs.rollout, "takes_uint8", False)

    def use_slot(self) -> None:
        """Fill the slot that the exchange has now."""
        self._outputs.use_slot()

    def use_policy(self, choose: Choose) -> None:
        """Let a policy choose the actions where an order leaves that to the ranks; see `RankPolicy.choose`."""
        self._choose = choose
        self._outputs.keep_observations()

    def reset(self, seed: Seeds = None, mask: np.ndarray | None = None, options: Options = None) -> None:
        """Reset the envs, or those of a mask over all envs of the job; `seed` and `options` are for all envs too.

        An int seeds env i with seed + i, as Gymnasium does; natively vectorized envs make of it what they promise.
        """
        mine = slice(self.env_indices.start, self.env_indices.stop)
        if isinstance(seed, int):
            seed = self._outputs.seeds_of(seed)
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
        if self._is_asking:  # A policy may be slow.
            return None
        return self._outputs.at_work(id(self), self._num_calls, self.num_steps)

    def do(self, command: int, arguments: tuple[Any, ...], is_to_stop: Callable[[], bool]) -> None:
        """Do what an order says, and fill the slot; a fragment ends after the step at which this `is_to_stop`."""
        self.num_done = 0
        self.restarts = []
        if command == Command.STEP:
            self._take_steps(is_to_stop)
        else:
            self._num_calls += 1
            if command == Command.RESET:
                self.reset(*arguments)
            else:
                self.restore(*arguments)
            self.num_done = 1
            self._note_restarts(0, self.num_steps)

    def _take_steps(self, is_to_stop: Callable[[], bool]) -> None:
        """Take the steps of a fragment, each into its row of the slot."""
        exchange, order, masks = self.exchange, self.exchange.order, self.masks
        if order.step >= 0:
            self.num_steps = order.step
        if self._policy is not None:
            self._policy.forget(self.num_steps)
        is_acting = order.is_chosen and self._choose is not None
        if is_acting:
            actions = self._room_for_actions()
        else:
            actions = self._chosen_actions() if order.is_chosen else order.own_actions
        has_masks = masks is not None and bool(masks.places)
        is_rolled = self._outputs.rollout is not None and self._replaying is None and not has_masks
        if (has_masks or (masks is not None and order.num_rows > 1)) and not is_rolled:
            # Actions by masks, which may come, are written into these arrays.
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
        if self._replaying is not None and self._replaying.is_over:
            self._replaying = None

    def _fill_rows(self, actions: list[np.ndarray], is_to_stop: Callable[[], bool], batches: Iterator[Tree]) -> None:
        masks, last_row = None if self._is_replaying else self.masks, self.exchange.order.num_rows - 1
        step = self._outputs.step if self._replaying is None else self._replaying.step
        for row, batch in enumerate(batches):
            self._num_calls += 1
            if masks is not None and masks.places:
                self._heed_masks(actions[0][row])
            self._fill(step(batch), row, OF_STEP)
            if self._outputs.faults:
                self._note_restarts(row, self.num_steps)
            self.num_steps += 1
            self.num_done += 1
            if row < last_row and is_to_stop() and not self._has_restarted(row):
                break

    def _roll(self, actions: np.ndarray) -> None:
        assert isinstance(self._outputs, NativeOutputs)
        self._num_calls += 1
        self._outputs.roll(actions)
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
        """Yield the actions of each step, views of these arrays."""
        if self._has_action_parts:
            return (tree_of(self.envs.single_action_space, rows) for rows in zip(*actions, strict=True))
        return iter(actions[0])

    def _acted(self, actions: list[np.ndarray]) -> Iterator[Tree]:
        """Ask the policy before each step, with what the step before has led to; yield the actions of the step."""
        assert self._choose is not None
        for row in range(self.exchange.order.num_rows):
            self._is_asking = True
            try:
                arrays, extras = self._choose(self._outputs.last_observations, self.env_indices, self.num_steps)
            finally:
                self._is_asking = False
            for array, chosen in zip(actions, arrays, strict=True):
                array[row] = chosen
            if self.exchange.layout.extras:
                for column, values in zip(self._outputs.columns_of(row).extra_arrays, extras, strict=True):
                    column[...] = values
            yield tree_of(self.envs.single_action_space, [array[row] for array in actions])

    def show(self, arrays: Sequence[np.ndarray]) -> None:
        """Show the policy these arrays, one for each leaf, as the last observations of all envs of the job."""
        self._outputs.show([array[self.env_indices.start : self.env_indices.stop] for array in arrays])

    def _room_for_actions(self) -> list[np.ndarray]:
        shape = self.exchange.order.num_rows, len(self.env_indices)
        return [np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in leaves(self.envs.single_action_space)]

    def _chosen_actions(self) -> list[np.ndarray]:
        """Return random actions for the steps of an order, for each leaf an array (num_steps, num_envs, ...)."""
        assert self._policy is not None, "a run's ranks have its random policy"
        return self._policy.rows(self.num_steps, self.exchange.order.num_rows, self.env_indices)

    def _heed_masks(self, actions: np.ndarray) -> None:
        """Choose again, of the actions that are allowed, for the envs that have masks."""
        assert self._policy is not None and self.masks is not None
        places, packed = self.masks.given()
        if len(places):
            env_indices = places + self.env_indices.start
            actions[places] = self._policy.by_masks(self.num_steps, env_indices, packed)

    def _note_restarts(self, row: int, step: int) -> None:
        """Note which envs were restarted in a step, and report it with the slot where infos do not."""
        faults = self._outputs.faults[:]
        self._outputs.faults.clear()
        self.restarts += [StepRestart(row, step, message, times) for _, message, times in faults]
        if faults and self.sends_restarts:
            self._put_infos({"faults": [fault[:2] for fault in faults]}, row)

    def _put_infos(self, infos: Info, row: int) -> None:
        self.exchange.infos.put(infos, row, is_kept=self.exchange.order.num_rows == 1)

    def restore(self, past: Past) -> None:
        """Get ready to take steps of a run again, whose actions will be sent."""
        self._is_replaying = True
        if past.is_by_episodes:
            self._replaying = ReplayingEnvs(self.envs, self.env_indices, past, self._outputs.step)
            self._fill(self._replaying.begin())
        else:
            self.reset(past.seed)

    def end_replay(self, lost: Sequence[int]) -> None:
        """Go on from where the run was; the envs with these indices with a new episode."""
        self._is_replaying = False
        if self._replaying is not None:
            self._replaying.finish(lost)

    def call_some(
        self, env_indices: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[int, object]:
        """Call a method, or get an attribute, of those envs of the job that are here; return results by env index."""
        here = [index for index in env_indices if index in self.env_indices]
        if not here:
            return {}
        places = [index - self.env_indices.start for index in here]
        return dict(zip(here, self._outputs.call(places, name, args, kwargs), strict=True))

    def set_some(self, env_indices: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of those envs of the job that are here, a value each."""
        pairs = zip(env_indices, values, strict=True)
        here = {index - self.env_indices.start: value for index, value in pairs if index in self.env_indices}
        self._outputs.set(list(here), name, list(here.values()))

    def render(self) -> dict[int, object]:
        """Return the frames of the envs, by env index."""
        return dict(zip(self.env_indices, self.envs.render() or (), strict=True))

    def _fill(self, outputs: Reset | Step, row: int = 0, names: Sequence[str] = OF_RESET) -> None:
        """Fill a row of the slot with what the envs gave, and send their infos after it."""
        self._outputs.put(outputs, row, names)
        infos, leaves_of_infos = outputs[-1], self.exchange.layout.infos
        if infos and self._pickles_infos:
            self._put_infos(infos, row)
        if leaves_of_infos:
            columns = self.exchange.slot_rows[row].info_arrays
            for leaf, (values, mask) in zip(leaves_of_infos, columns, strict=True):
                write_columns(infos, leaf, values, mask, self.env_indices.start, self._way_out)
