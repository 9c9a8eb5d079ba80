"""The steps of a trainer's envs: its actions go out to the ranks, and what comes back belongs to the trainer."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.spaces import Tree, leaves, tree_of
from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.drive.lanes import StepInfos, final_observations, indices_of, infos_of, parts_of
from mpi_rollout.envs.inputs import Info, Options, Reset, Seeds, Step
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.infos import FINAL_INFO, FINAL_OBS
from mpi_rollout.exchange.orders import Command
from mpi_rollout.train.agents import AgentsForm
from mpi_rollout.train.ends import RootEnd

NUM_ROWS = 2  # Those of the step before and of the last one.
Piece = tuple[int, slice]  # A row of a block, and neighbouring envs of it.
Lay = Callable[[Sequence[Lane]], None]


class Outcomes:
    """The last two outcomes of each lane.

    A lane's slots are laid into the two rows of a block in turn.

    Without `copy`, observations of neighbours in one row are views, which the lane's next but one outcome overwrites.
    """

    def __init__(self, driver: Driver, copy: bool):
        self._driver, self._space, self._copy = driver, driver.observation_space, copy
        self._block = driver.block(NUM_ROWS)
        self._has_parts = isinstance(self._space, spaces.Dict | spaces.Tuple)
        self._row = dict.fromkeys(driver.lanes, 0)  # The row of each lane's last outcome.
        self._results = {
            lane: [[array[row, lane.envs] for array in self._block.outcomes] for row in range(NUM_ROWS)]
            for lane in driver.lanes
        }
        self.use_slots()

    def use_slots(self) -> None:
        """Take outcomes from the slots that the exchanges have now."""
        self._unpackers = self._driver.unpackers(self._block)

    def lay(self, lanes: Sequence[Lane]) -> None:
        """Keep the slots of some lanes, which have just come."""
        for lane in lanes:
            self._row[lane] = row = 1 - self._row[lane]
            self._unpackers[lane].lay_step(row)

    def keep(self, lanes: Sequence[Lane], arrays: Sequence[np.ndarray]) -> None:
        """Keep observations of some lanes' envs, leaf by leaf, as their last ones."""
        for lane, part in parts_of(lanes):
            self._row[lane] = row = 1 - self._row[lane]
            for array, given in zip(self._block.observation_arrays, arrays, strict=True):
                array[row, lane.envs] = given[part]

    def last_arrays(self, lanes: Sequence[Lane]) -> list[np.ndarray]:
        """Return the last observations of some lanes, an array for each leaf."""
        pieces = self._pieces(lanes)
        return [_joined(array, pieces, copy=False) for array in self._block.observation_arrays]

    def observations(self, lanes: Sequence[Lane]) -> Tree:
        """Return the last observations of some lanes, C-contiguous, as a tree of arrays."""
        pieces = self._pieces(lanes)
        if not self._has_parts:
            return _joined(self._block.observation_arrays[0], pieces, self._copy)
        return tree_of(self._space, [_joined(array, pieces, self._copy) for array in self._block.observation_arrays])

    def results(self, lanes: Sequence[Lane]) -> list[np.ndarray]:
        """Return copies of the rewards, terminations, truncations, and those of agents, of lanes' last outcomes."""
        of_lanes = [self._results[lane][self._row[lane]] for lane in lanes]
        if len(of_lanes) == 1:  # The usual case.
            return [array.copy() for array in of_lanes[0]]
        return [np.concatenate(arrays) for arrays in zip(*of_lanes, strict=True)]

    def _pieces(self, lanes: Sequence[Lane]) -> list[Piece]:
        """Where the last outcomes of some lanes are: those of neighbours in the same row are one piece."""
        pieces = [(self._row[lanes[0]], lanes[0].envs)]
        if len(lanes) == 1:  # The usual case.
            return pieces
        for before, lane in pairwise(lanes):
            row = self._row[lane]
            if pieces[-1][0] == row and before.envs.stop == lane.envs.start:
                pieces[-1] = row, slice(pieces[-1][1].start, lane.envs.stop)
            else:
                pieces.append((row, lane.envs))
        return pieces


def _joined(array: np.ndarray, pieces: Sequence[Piece], copy: bool) -> np.ndarray:
    """Return pieces of a (num_rows, num_envs, ...) array as one; a single piece is a view unless `copy`."""
    if len(pieces) > 1:
        return np.concatenate([array[piece] for piece in pieces])
    return array[pieces[0]].copy() if copy else array[pieces[0]]


class Steps:
    """Takes a trainer's steps, and has them recorded where the trainer wants that."""

    def __init__(
        self, driver: Driver, end: RootEnd, mode: AutoresetMode, outcomes: Outcomes, form: AgentsForm | None = None
    ):
        self.driver, self.mode, self.outcomes, self.form = driver, mode, outcomes, form
        self._end, self._arrived = end, end.arrived

    def reset(self, seed: Seeds, mask: np.ndarray | None, options: Options, is_list: bool = False) -> Reset:
        """Reset envs, see `Slice.reset`; return the observations of all envs, and infos, see `infos`."""
        driver, lanes, recorder = self.driver, self.driver.lanes, self._end.recorder
        if recorder is not None:
            recorder.make_room(lanes, 0)
        driver.do(Command.RESET, seed, mask, options)
        self.outcomes.lay(lanes)
        taken = self._take_infos(lanes)
        self._end.note_reset(mask)
        [infos] = self._formed(taken, 1, is_list)
        driver.restarts.clear()
        if driver.has_notices:
            self._end.say_notices()
        if recorder is not None:
            recorder.reset(self.outcomes.last_arrays(lanes), recorded(taken, 1)[0], seed, mask, options)
        observations = self.outcomes.observations(lanes)
        if self.form is None:
            return observations, infos
        if not is_list:
            self.form.say(infos, self.alive(lanes))
        return self.form.observations(observations, 1), infos

    def alive(self, lanes: Sequence[Lane]) -> list[np.ndarray]:
        """Return which agents are alive in some lanes' envs, an array for each agent."""
        return self.outcomes.last_arrays(lanes)[len(leaves(self.driver.observation_space)) :]

    def send(self, lanes: Sequence[Lane], actions: object) -> None:
        """Check the actions of some lanes' next step, and send them."""
        driver, recorder = self.driver, self._end.recorder
        if recorder is not None:
            recorder.make_room(lanes, 1)
        arrays = driver.read(actions if self.form is None else self.form.actions(actions, 1), indices_of(lanes))
        if len(lanes) == 1:
            driver.send(lanes[0], arrays)
        else:
            for lane, part in parts_of(lanes):
                driver.send(lane, [array[part] for array in arrays])
        if recorder is not None:
            recorder.act(lanes, [array[None] for array in arrays])

    def receive(self, num_lanes: int, lay: Lay) -> list[Lane]:
        """Wait until so many lanes have arrived, or all that are under way; `lay` keeps their slots.

        Return those that arrived first, in env order.
        """
        driver, arrived = self.driver, self._arrived
        while len(arrived) < num_lanes and driver.under_way:
            lanes = driver.step_and_receive(num_lanes - len(arrived))
            lay(lanes)
            arrived += lanes
        first = arrived[:num_lanes]
        del arrived[:num_lanes]
        if len(first) > 1:
            first.sort(key=lambda lane: lane.envs.start)
        return first

    def outcome(self, lanes: Sequence[Lane], is_list: bool = False) -> Step:
        """Return the outcome of a step of some lanes; infos see `infos`."""
        observations, results = self.outcomes.observations(lanes), self.outcomes.results(lanes)
        rewards, terminations, truncations, *_ = results
        ended = None
        if self.mode is not AutoresetMode.NEXT_STEP:
            ended = (terminations | truncations)[None]
            self._end.note_ends(lanes, ended[0])
        all_infos, noted = self.infos(lanes, 1, ended, is_list)
        if self._end.recorder is not None:
            after = [array[None] for array in self.outcomes.last_arrays(lanes)]
            self._end.recorder.take(lanes, [array[None] for array in results], after, noted)
        if self.form is not None:
            if not is_list:
                self.form.say(all_infos[0], self.alive(lanes), terminations | truncations)
            return self.form.observations(observations, 1), *self.form.results(results), all_infos[0]
        return observations, rewards, terminations, truncations, all_infos[0]

    def infos(
        self, lanes: Sequence[Lane], num_steps: int, ended: np.ndarray | None, is_list: bool = False
    ) -> tuple[list[Any], Sequence[Info]]:
        """Return the infos of each step of the last slots, and those that are recorded, if a recorder is there.

        They are one dict of all envs; with `is_list` a list of each env's dict, which is empty where no env said
        anything.  `ended` tells of each step which envs ended in it.

        DataError if what envs say does not fit into one dict, or cannot be read here: it is as if an env had failed.
        """
        driver, recorder = self.driver, self._end.recorder
        taken = self._take_infos(lanes, num_steps)
        all_infos = self._formed(taken, num_steps, is_list)
        noted = () if recorder is None else recorded(taken, num_steps)
        if recorder is not None and recorder.notes_restarts:
            recorder.note_restarts(lanes, driver.restarts, [step.failures() for step in taken])
        driver.restarts.clear()  # Whoever wants to know of them asks for infos.
        if self.mode is AutoresetMode.SAME_STEP and ended is not None:
            for step in np.flatnonzero(ended.any(axis=1)).tolist():
                given = taken[step].final_observations() if taken else {}
                finals = final_observations(driver.observation_space, lanes, ended[step], given, step)
                if recorder is not None:
                    noted[step].update({FINAL_OBS: finals.copy(), f"_{FINAL_OBS}": ended[step]})
                if self.form is not None:
                    self.form.form_finals(finals)
                all_infos[step] = (_with_each_final if is_list else _with_finals)(all_infos[step], finals, ended[step])
        if driver.has_notices:
            self._end.say_notices()
        return all_infos, noted

    def _take_infos(self, lanes: Sequence[Lane], num_steps: int = 1) -> list[StepInfos]:
        try:
            return infos_of(lanes, num_steps)
        except DataError:
            self.driver.has_fault = True
            raise

    def _formed(self, taken: Sequence[StepInfos], num_steps: int, is_list: bool) -> list[Any]:
        """Return the infos of each step as the trainer asked for them."""
        if not taken:  # The usual case.
            return [[] if is_list else {} for _ in range(num_steps)]
        try:
            return [step.of_each() if is_list else step.merged() for step in taken]
        except DataError:
            self.driver.has_fault = True
            raise


def recorded(taken: Sequence[StepInfos], num_steps: int) -> list[Info]:
    """Return of each step the infos that a recorder heeds: those with a type."""
    return [dict(step.columns) for step in taken] or [{} for _ in range(num_steps)]


def _with_finals(infos: Info, finals: np.ndarray, ended: np.ndarray) -> Info:
    """Put in the last observations of the envs that ended, before their last infos, as Gymnasium does."""
    ordered: Info = {}
    for name, values in infos.items():
        if name == FINAL_INFO:
            ordered |= {FINAL_OBS: finals, f"_{FINAL_OBS}": ended}
        ordered[name] = values
    return ordered | {FINAL_OBS: finals, f"_{FINAL_OBS}": ended}  # Some may have come with the infos.


def _with_each_final(of_each: list[Info], finals: np.ndarray, ended: np.ndarray) -> list[Info]:
    """Put the last observation of each env that ended into its own dict."""
    of_each = of_each or [{} for _ in finals]
    for row in np.flatnonzero(ended).tolist():
        of_each[row][FINAL_OBS] = finals[row]
    return of_each
