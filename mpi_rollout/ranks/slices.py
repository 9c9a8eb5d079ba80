"""A slice: one rank's envs for one exchange.  Orders act on it, and it fills the slots.

Envs of a loop write into the slot by themselves; `native_slices` has those whose outputs are checked and copied.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.columns import with_masks
from mpi_rollout.core.layout import RESTARTED
from mpi_rollout.core.partition import shifted
from mpi_rollout.core.spaces import Tree, leaves, tree_of
from mpi_rollout.envs.infos import MaskColumn
from mpi_rollout.envs.inputs import Info, Options, Reset, Seeds, Step, Values
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.replaying import Past, ReplayingEnvs
from mpi_rollout.envs.single_envs import Restart
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.infos import TRAINERS_WAY_OUT, write_columns
from mpi_rollout.exchange.orders import Command
from mpi_rollout.policies.memory import PolicyView
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.watchdog import Work

OF_RESET = "observations", "infos"
OF_STEP = "observations", "rewards", "terminations", "truncations", "infos"
RUNS_WAY_OUT = "give --store-infos the type that the envs have, or leave this info out"
Choose = Callable[[Tree, int], tuple[list[np.ndarray], list[np.ndarray]]]


class Slice(ABC):
    """The envs of one rank that take part in one exchange.

    `random` is the random policy of a run: it chooses where an order leaves that to the ranks, or where envs have
    action masks.

    Attributes
    ----------
    num_steps
        Steps that the envs have taken: the index of the step that they are in, or that comes after a reset.
    num_done
        How many steps of the last order are complete.
    restarts
        For each restart of an env in these steps, what to tell the user.
    last_observations
        (num_envs, ...); the next step overwrites them.
    named_envs
        The indices of the envs in messages: those in the larger run, of which env 0 here is env `first_env`.
    """

    envs: Any  # A VectorEnv; that of a loop can call single envs by name.
    last_observations: Tree
    step: Callable[[Tree, int], Step]  # The envs' own `step`, given the row of the slot, too.
    _first_seed = 0  # The first env's seed, where seed 0 of the job gives another one.
    _has_own_seeds = False  # The envs of a run have the seeds of their episodes; those of its first ones are not taken.

    def __init__(self, exchange: Exchange, envs: VectorEnv, random: RandomPolicy | None, first_env: int = 0):
        self.exchange, self.envs, self.env_indices = exchange, envs, exchange.envs
        self.named_envs = shifted(exchange.envs, first_env)
        self.num_steps = self.num_done = self._num_calls = 0
        self._way_out = RUNS_WAY_OUT if exchange.contents.keeps_infos else TRAINERS_WAY_OUT
        self.restarts: list[str] = []
        self.faults: list[Restart] = []  # Restarts of the step under way.
        self.has_reset_rows = envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
        self._space, self._action_leaves = envs.single_action_space, leaves(envs.single_action_space)
        self._random = random
        self._choose: Choose | None = None
        self._view: PolicyView | None = None  # For a policy that takes more than observations.
        self._is_asking = False  # The policy, and no env, is at work.
        self.asked_s = 0.0  # Seconds of the last order that it took; whoever takes them in sets them to 0.
        self._is_replaying = False  # Steps are taken again.
        self._replaying: ReplayingEnvs | None = None  # Takes those of running episodes.
        self.masks = None if random is None else MaskColumn(self._space, self.env_indices)

    @abstractmethod
    def use_slot(self) -> None:
        """Fill the slot that the exchange has now."""

    @abstractmethod
    def _put(self, outputs: Reset | Step, row: int, names: tuple[str, ...]) -> None:
        """Complete a row of the slot, but for its infos, after a step or reset, which gave `OF_STEP` or `OF_RESET`."""

    @abstractmethod
    def _env_at_work(self) -> Work | None:
        """Return the call of envs that is under way."""

    def _call(self, places: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Values:
        """Call a method, or get an attribute, of the envs at these places."""
        return tuple(self.envs.call_some(places, name, *args, **kwargs))

    def _set(self, places: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of the envs at these places, a value each."""
        self.envs.set_some(places, name, values)

    def use_policy(self, choose: Choose, view: PolicyView | None) -> None:
        """Let a policy choose where an order leaves that to the ranks; `view` is told what steps return, if given."""
        self._choose, self._view = choose, view
        self._info_names = [leaf.path for leaf in with_masks(self.exchange.layout.infos)]

    def reset(self, seed: Seeds = None, mask: np.ndarray | None = None, options: Options = None) -> None:
        """Reset the envs, or those of a mask over all envs of the job; `seed` and `options` are for all envs too.

        An int seeds env i with seed + i, as Gymnasium does; natively vectorized envs make of it what they promise.
        """
        mine = slice(self.env_indices.start, self.env_indices.stop)
        if seed is not None:
            seed = seed + self._first_seed if isinstance(seed, int) else seed[mine]
        if isinstance(options, list):
            options = options[mine]
        if mask is not None:
            assert not isinstance(options, Sequence), "a mask comes with a dict of options, or none"
            options = {**(options or {}), "reset_mask": mask[mine]}
        self._fill(self.envs.reset(seed=seed, options=options))  # Lists too, in a loop.
        if self._view is not None:
            self._view.note_reset(None if mask is None else mask[mine])

    def at_work(self) -> Work | None:
        """Return the call that is under way, of one env or of all; for another thread to ask.  A policy may be slow."""
        return None if self._is_asking else self._env_at_work()

    def do(self, command: int, arguments: tuple[Any, ...], is_to_stop: Callable[[], bool]) -> None:
        """Do what an order says, and fill the slot; a fragment ends after the step at which this `is_to_stop`."""
        self.num_done, self.restarts = 0, []
        if command == Command.STEP:
            self._take_steps(is_to_stop)
            return
        self._num_calls += 1
        (self.reset if command == Command.RESET else self.restore)(*arguments)
        self.num_done = 1
        self._note_restarts(0)

    def _take_steps(self, is_to_stop: Callable[[], bool]) -> None:
        """Take the steps of an order, each into its row of the slot."""
        order, slot = self.exchange.order, self.exchange.slot
        if order.step >= 0:
            self.num_steps = order.step
        if self._random is not None:
            self._random.forget(self.num_steps)
        is_asked = order.is_chosen and self._choose is not None
        actions, extras = [*order.own_actions], list[np.ndarray]()
        if is_asked:
            shape = order.num_rows, len(self.env_indices)
            groups = self._action_leaves, self.exchange.layout.extras
            actions, extras = ([np.zeros((*shape, *leaf.shape), leaf.dtype) for leaf in group] for group in groups)
        elif order.is_chosen:
            assert self._random is not None, "a run's ranks have its random policy"
            actions = self._random.rows(self.num_steps, order.num_rows, self.env_indices)
        try:
            self._fill_rows(actions, [*actions, *extras] if is_asked else [], is_to_stop)
        finally:
            if self.exchange.layout.actions:  # What was chosen, and taken by the envs; the root's come without extras.
                columns = *slot.action_arrays, *slot.extra_arrays
                for array, column in zip([*actions, *extras], columns, strict=False):
                    column[: self.num_done] = array[: self.num_done]
        if self._replaying is not None and self._replaying.is_over:
            self._replaying = None

    def _fill_rows(self, actions: list[np.ndarray], choices: list[np.ndarray], is_to_stop: Callable[[], bool]) -> None:
        """Step once for each row; if there are arrays for `choices`, the policy fills their rows first."""
        masks, marks = None if self._is_replaying else self.masks, self.exchange.own_marks
        last_row = self.exchange.order.num_rows - 1
        if masks is not None and (masks.places or last_row):
            # Actions by masks, which may come, are written into these arrays.
            pairs = zip(actions, self._action_leaves, strict=True)
            actions[:] = [np.array(array, leaf.dtype) for array, leaf in pairs]
        step = self.step if self._replaying is None else self._replaying.step
        for row, batch in enumerate(self._batches(actions)):
            if choices:
                self._ask(row, choices)
            if masks is not None and masks.places:
                self._follow_masks(masks, actions[0][row])
            self._fill(step(batch, row), row, OF_STEP)
            if self.faults:
                self._note_restarts(row)
            self.num_steps += 1
            self.num_done += 1
            if row < last_row and is_to_stop() and not marks[row]:  # A mark says one thing: else the next step does.
                break

    def _batches(self, actions: list[np.ndarray]) -> Iterable[Tree]:
        """Yield the actions of each step, views of these arrays."""
        if len(actions) == 1 and not self._action_leaves[0].keys:
            return actions[0]
        return (tree_of(self._space, rows) for rows in zip(*actions, strict=True))

    def _ask(self, row: int, choices: list[np.ndarray]) -> None:
        """Ask the policy for the actions of a step, with what the step before has led to."""
        assert self._choose is not None
        self._is_asking, start = True, perf_counter()
        try:
            actions, extras = self._choose(self.last_observations, self.num_steps)
        finally:
            self._is_asking = False
            self.asked_s += perf_counter() - start
        for array, chosen in zip(choices, [*actions, *extras], strict=False):  # Extras may have no column.
            array[row] = chosen

    def _follow_masks(self, masks: MaskColumn, actions: np.ndarray) -> None:
        """Choose again, of the actions that are allowed, for the envs that have masks."""
        assert self._random is not None, "masks are taken in for the random policy"
        places, packed = masks.given()
        if len(places):
            actions[places] = self._random.by_masks(self.num_steps, places + self.env_indices.start, packed)

    def show(self, observations: Tree) -> None:
        """Show the policy these as the envs' last observations."""
        for leaf in leaves(self.envs.single_observation_space):
            leaf.of(self.last_observations)[...] = leaf.of(observations)

    def _note_restarts(self, row: int) -> None:
        """Note which envs were restarted in a step; report it with the slot where the infos of a trainer do not."""
        faults = self.faults[:]
        self.faults.clear()
        self.restarts += [f"step {self.num_steps}: {message}; {times}" for _, message, times in faults]
        if faults and not self.exchange.contents.pickles_infos:
            self.exchange.own_marks[row] = RESTARTED
            shift = self.env_indices.start - self.named_envs.start
            self._put_infos({"faults": [(index + shift, message) for index, message, _ in faults]}, row)

    def _put_infos(self, infos: Info, row: int) -> None:
        self.exchange.infos.put(infos, row, is_kept=self.exchange.order.num_rows == 1)

    def restore(self, past: Past) -> None:
        """Get ready to take steps of a run again, whose actions will be sent."""
        self._is_replaying = True
        if past.is_by_episodes:
            self._replaying = ReplayingEnvs(self.envs, self.env_indices, past, self.step)
            self._fill(self._replaying.begin())
        else:
            self.reset(None if self._has_own_seeds else past.seed)

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
        places = [index - self.env_indices.start for index in here]
        return dict(zip(here, self._call(places, name, args, kwargs), strict=True)) if here else {}

    def set_some(self, env_indices: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of those envs of the job that are here, a value each."""
        pairs = zip(env_indices, values, strict=True)
        here = {index - self.env_indices.start: value for index, value in pairs if index in self.env_indices}
        self._set(list(here), name, list(here.values()))

    def render(self) -> dict[int, object]:
        return dict(zip(self.env_indices, self.envs.render() or (), strict=True))

    def _fill(self, outputs: Reset | Step, row: int = 0, names: tuple[str, ...] = OF_RESET) -> None:
        """Fill a row of the slot with what the envs gave, and send their infos after it."""
        self._put(outputs, row, names)
        if self._view is not None and names is OF_STEP:
            self._view.note_step(*outputs[2:4])
        infos, leaves_of_infos = outputs[-1], self.exchange.layout.infos
        if infos and self.exchange.contents.pickles_infos:
            self._put_infos(infos, row)
        if leaves_of_infos:
            columns = self.exchange.slot_rows[row].info_arrays
            for leaf, (values, mask) in zip(leaves_of_infos, columns, strict=True):
                write_columns(infos, leaf, values, mask, self.env_indices.start, self._way_out)
            if self._view is not None:
                self._view.note_infos(dict(zip(self._info_names, chain.from_iterable(columns), strict=True)))


class LoopSlice(Slice):
    """The envs of a loop: they write into the slot's rows, or where nobody reads these, into arrays of their own."""

    _has_own_seeds = True

    def __init__(self, exchange: Exchange, envs: LoopVectorEnv, random: RandomPolicy | None, first_env: int = 0):
        super().__init__(exchange, envs, random, first_env)
        self._loop, self._first_seed = envs, self.env_indices.start
        envs.infos.keep_apart()
        envs.masks = self.masks
        self.step, self.faults = envs.step, envs.faults
        self.use_slot()

    def use_slot(self) -> None:
        exchange = self.exchange
        is_read = bool(exchange.layout.observations)
        self._loop.write_to(exchange.slot_rows if is_read else [self._loop.columns] * exchange.room)
        self.last_observations = self._loop.columns.observations

    def do(self, command: int, arguments: tuple[Any, ...], is_to_stop: Callable[[], bool]) -> None:
        if command != Command.STEP:
            self._loop.rewind()  # A reset may be of some envs.
        super().do(command, arguments, is_to_stop)

    def _put(self, outputs: Reset | Step, row: int, _names: tuple[str, ...]) -> None:
        self.last_observations = outputs[0]
        self.exchange.own_num_ended[row] = len(self._loop.ended)

    def _env_at_work(self) -> Work | None:
        work = self._loop.at_work()
        if work is None:
            return None
        (place, call, patience), step = work, self.num_steps
        return Work((id(self), call), lambda: f"step {step}: {self._loop.describe_work(place, call[0])}", patience)
