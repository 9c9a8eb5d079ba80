"""What a trainer does, row by row, on its way into a file; see `recording` for the file itself.

Row t of an env is its step t: what the env showed before, the action, what followed.  A row is final when the next step
of its envs has been taken: until then the trainer may reset them.  If an episode was under way, its last row then says
truncated.  Only final rows go to the writer.  What can be told of many rows at a time waits until then.

Whatever can fail, such as a disk that is full, fails in `make_room`, before anything is sent to the ranks.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.columns import values_of
from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import Leaf, leaves
from mpi_rollout.drive.driver import Driver, Lane, LaneRestart
from mpi_rollout.drive.lanes import parts_of
from mpi_rollout.envs.inputs import Info, Options, Seeds, seed_of_each
from mpi_rollout.errors import StorageError, as_argument
from mpi_rollout.exchange.infos import FINAL_OBS
from mpi_rollout.process.clock import PHASES, utc_now
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.storage.schema import RESET, Ending, Reports
from mpi_rollout.storage.writer import Writer
from mpi_rollout.train.recorded_rows import RecordedRows

COMMIT_EVERY_S = 10.0
NUM_OPEN = 2  # The number of last rows that tell in which state the envs are.
VERSION = "policy_version"  # The last of the extras.


class Recorder:
    """Takes down what a trainer does with the envs of all ranks.  On the root.

    `infos` are the columns of those that are stored, values and masks; `notes_restarts`: failed envs are made again.
    """

    def __init__(
        self,
        writer: Writer,
        make_block: Callable[[], Block],
        driver: Driver,
        facts: EnvFacts,
        mode: AutoresetMode,
        hosts: Mapping[int, str],
        infos: Sequence[Leaf],
        notes_restarts: bool,
    ):
        self.writer, self._mode, self._is_native, self._hosts = writer, mode, facts.is_native, hosts
        self._infos, self.notes_restarts = infos, notes_restarts
        self._rows, self._pid, self._is_finished = RecordedRows(writer, make_block, mode), os.getpid(), False
        self._lanes, self._num_envs, self._division = driver.lanes, driver.num_envs, driver.exchanges.division
        self._leaves = leaves(driver.observation_space)
        self._step = dict.fromkeys(driver.lanes, 0)
        self._reset_step = np.zeros(self._num_envs, np.int64)  # The first step after the last reset of each env.
        self._has_failed = False
        self._started_s = perf_counter()
        self._commit_at = self._started_s + COMMIT_EVERY_S
        self._counted = self._started_s, 0

    @property
    def num_steps(self) -> int:
        """The steps of all envs: those of the rank that is furthest behind."""
        return min(self._step.values())

    def make_room(self, lanes: Sequence[Lane], num_steps: int) -> None:
        """Get ready for the next steps of some lanes; hand in what is final, and commit it now and then.

        StorageError if the file cannot be written.
        """
        try:
            self.writer.check()
            self._make_room(lanes, num_steps)
        except StorageError:
            self._has_failed = True
            raise

    def _make_room(self, lanes: Sequence[Lane], num_steps: int) -> None:
        step = max([self._step[lane] for lane in lanes]) + num_steps
        if step < self._rows.blocks.stop and perf_counter() < self._commit_at:
            return
        self._rows.make_room(step)
        num_final, now = self.num_steps - NUM_OPEN, perf_counter()
        self._rows.hand_in(num_final, commits=now >= self._commit_at)
        if now >= self._commit_at:
            self._commit_at = now + COMMIT_EVERY_S
            self._add_interval(now, num_final)
            self.writer.values.say_warnings(as_argument)

    def _add_interval(self, now: float, num_steps: int) -> int:
        """Write the number of env steps so far into the file; return it."""
        num_reset_rows = 0  # The step after an end only resets.
        if self._mode == AutoresetMode.NEXT_STEP:
            num_reset_rows = self._rows.num_ends - self._rows.num_last
        env_steps = max(num_steps, 0) * self._num_envs - num_reset_rows
        seconds = max(now - self._counted[0], 1e-9)
        self.writer.add_interval(now - self._started_s, env_steps, (env_steps - self._counted[1]) / seconds)
        self._counted = now, env_steps
        return env_steps

    def reset(
        self, arrays: Sequence[np.ndarray], infos: Info, seed: Seeds, mask: np.ndarray | None, options: Options
    ) -> None:
        """Take down a reset of the envs of a mask (None is all), with what they said.

        `arrays` are the observations of all envs after it, for each leaf.
        """
        mask = np.ones(self._num_envs, np.bool_) if mask is None else mask
        resets = np.zeros(self._num_envs, RESET)
        for lane in self._lanes:
            step, mine = self._step[lane], np.flatnonzero(mask[lane.envs]) + lane.envs.start
            is_first, has_ended = self._state_of(lane)
            resets["cut"][lane.envs] = is_running = ~is_first & ~has_ended
            resets["step"][lane.envs] = step
            if (left := mine[~is_first[mine - lane.envs.start]]).size:
                self._rows.cut(step - 1, left, is_running[left - lane.envs.start])
            block, row = self._rows.at(step)
            for target, array in zip(block.observation_arrays, arrays, strict=True):
                target[row, mine] = array[mine]
            for target, values in zip(block.info_arrays, values_of(infos, self._infos, mine), strict=True):
                target[row, mine] = values
            self._reset_step[mine] = step
        # Natively vectorized envs make of one seed what they like.
        seeds = [None] * self._num_envs if self._is_native else seed_of_each(seed, self._num_envs)
        resets["env_index"] = np.arange(self._num_envs)
        resets["seed"] = [-1 if one is None else one for one in seeds]
        resets["options"] = [bool(one) for one in options] if isinstance(options, list | tuple) else bool(options)
        self.writer.note("resets", resets[mask])

    def _state_of(self, lane: Lane) -> tuple[np.ndarray, np.ndarray]:
        """Tell for a lane's envs whether the last observation begins an episode, and whether it ends one."""
        step, reset_step = self._step[lane], self._reset_step[lane.envs]
        is_first, has_ended = reset_step == step, np.zeros(lane.num_envs, np.bool_)
        if step > 0:
            has_ended = self._rows.ends(step - 1, lane.envs) & ~is_first
        if self._mode == AutoresetMode.SAME_STEP:
            return is_first | has_ended, np.zeros_like(has_ended)
        if self._mode == AutoresetMode.NEXT_STEP and step > 1:
            # The step before has reset who ended in the last but one.
            is_first |= self._rows.ends(step - 2, lane.envs) & (reset_step < step - 1)
        return is_first, has_ended

    def act(self, lanes: Sequence[Lane], arrays: Sequence[np.ndarray]) -> None:
        """Take down the actions of the next steps of some lanes: arrays (num_steps, num_envs of these lanes, ...)."""
        for lane, part in parts_of(lanes):
            for block, rows, given in self._rows.blocks.pieces(self._step[lane], len(arrays[0])):
                for target, array in zip(block.action_arrays, arrays, strict=True):
                    target[rows, lane.envs] = array[given, part]

    def take(
        self,
        lanes: Sequence[Lane],
        results: Sequence[np.ndarray],
        after: Sequence[np.ndarray],
        infos: Sequence[Info],
        chosen: Sequence[np.ndarray] = (),
    ) -> None:
        """Take down what followed from the actions, in arrays as `act` takes.

        `results` are in the order of `columns.outcomes_of`, `after` are the observations after each step, `chosen` the
        actions, extras and version of the policy on the ranks, where it acted.
        """
        num_steps = len(results[0])
        for lane, part in parts_of(lanes):
            step, envs = self._step[lane], lane.envs
            for block, rows, given in self._rows.blocks.pieces(step, num_steps):
                targets = (*block.outcomes, *block.action_arrays, *block.extra_arrays)
                for target, array in zip(targets, (*results, *chosen), strict=False):
                    target[rows, envs] = array[given, part]
            for block, rows, given in self._rows.blocks.pieces(step + 1, num_steps):
                for target, array in zip(block.observation_arrays, after, strict=True):
                    target[rows, envs] = array[given, part]
            for number, infos_of_step in enumerate(infos):
                self._take_infos(lane, step + number, part, infos_of_step)
            self._step[lane] = step + num_steps

    def _take_infos(self, lane: Lane, step: int, part: slice, infos: Info) -> None:
        """Take down infos of a step, and the last states of episodes that end in it while the next ones begin."""
        if self._infos:
            after, row = self._rows.at(step + 1)
            for target, values in zip(after.info_arrays, values_of(infos, self._infos, part), strict=True):
                target[row, lane.envs] = values
        if FINAL_OBS not in infos:
            return
        block, row = self._rows.at(step)
        finals, has_ended = infos[FINAL_OBS][part], infos[f"_{FINAL_OBS}"][part]
        for place in np.flatnonzero(has_ended).tolist():
            for target, leaf in zip(block.final_observation_arrays, self._leaves, strict=True):
                target[row, lane.envs.start + place] = leaf.of(finals[place])
        last_infos = values_of(infos.get("final_info", {}), self._infos, part)
        for target, values in zip(block.final_info_arrays, last_infos, strict=True):
            target[row, lane.envs] = values

    def note_restarts(
        self, lanes: Sequence[Lane], restarts: Sequence[LaneRestart], failures: Sequence[Mapping[int, str]]
    ) -> None:
        """Take down envs that failed and were made again.

        They are in the infos, from which `failures` are of each step, by row; unless nobody asked for infos.  Call it
        before the rows are taken.
        """
        for restart in restarts:
            self.writer.add_fault(restart.env_index, self._step[restart.lane] + restart.row, restart.message)
        lane_of_place = [(lane, index) for lane in lanes for index in range(lane.envs.start, lane.envs.stop)]
        for row, of_step in enumerate(failures):
            for place, message in of_step.items():
                lane, env_index = lane_of_place[place]
                self.writer.add_fault(env_index, self._step[lane] + row, message)

    def finish(self) -> None:
        """Complete the file and give it its name, once; without a step, leave no file.

        Rows that fast ranks have and slow ones have not are left out.

        StorageError if the file cannot be written; what is committed stays in the `.part`.
        """
        if self._is_finished or os.getpid() != self._pid:
            return
        self._is_finished = True
        try:
            if self._has_failed:  # Whoever took the steps knows it.
                self._remove_empty()
                return
            if not self.num_steps:
                self.writer.discard()
                return
            self._rows.hand_in(self.num_steps, commits=True)
            env_steps = self._add_interval(now := perf_counter(), self.num_steps)
            seconds = now - self._started_s
            self.writer.finish(Ending(utc_now(), env_steps, seconds, self._reports(), [], complete=True))
            self.writer.values.say_warnings(as_argument)
        except StorageError:
            self._remove_empty()
            raise
        finally:
            self.writer.release()

    def _remove_empty(self) -> None:
        """Remove a file without a committed step: nothing can be recovered, and it would be in the way."""
        if not self.writer.num_committed:
            with suppress(OSError):
                os.unlink(self.writer.part)

    def _reports(self) -> Reports:
        """Return the file's report of each rank."""
        seconds = dict.fromkeys(PHASES, 0.0)
        return [
            {"rank": rank, "host": host, "num_envs": sum(map(len, self._division.envs_of(place))), "seconds": seconds}
            for place, (rank, host) in enumerate(self._hosts.items())
        ]
