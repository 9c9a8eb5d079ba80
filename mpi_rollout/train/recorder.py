"""What a trainer does, row by row, on its way into a file; see `recording` for the file itself.

Row t of an env is its step t: what the env showed before, the action, what followed.  A row is final when the next step
of its envs has been taken: until then the trainer may reset them.  If an episode was under way, its last row then says
truncated.  Only final rows go to the writer.

Whatever can fail, such as a disk that is full, fails in `make_room`, before anything is sent to the ranks.
"""

import os
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.clock import PHASES, utc_now
from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.inputs import Info, Options, Seeds, seed_of_each
from mpi_rollout.exchange.infos import FINAL_OBS
from mpi_rollout.process.console import say
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import Lane, LaneRestart, indices_of
from mpi_rollout.storage.run_file import Ending
from mpi_rollout.storage.schema import RESET, Reports
from mpi_rollout.storage.writer import Writer
from mpi_rollout.train.fragments import Batch
from mpi_rollout.train.recorded_rows import Rows

COMMIT_EVERY_S = 10.0
VERSION = "policy_version"  # The last of the extras.


class Recorder:
    """Takes down what a trainer does with the envs of all ranks.  On the root.

    Attributes
    ----------
    num_steps
        Of all envs: those of the rank that is furthest behind.
    env_steps
        Steps of single envs, those that only reset an env not counted.
    needs_reset
        The first observations are not known: before the first reset, and after a failure.
    """

    def __init__(
        self,
        writer: Writer,
        make_block: Callable[[], Block],
        driver: Driver,
        mode: AutoresetMode,
        is_native: bool,
        hosts: Sequence[str],
    ):
        self.writer, self._mode, self._is_native, self._hosts = writer, mode, is_native, hosts
        self._rows, self._pid, self._is_finished = Rows(writer, make_block), os.getpid(), False
        self._lanes, self._num_envs, self._division = driver.lanes, driver.num_envs, driver.exchanges.division
        self._leaves, self._action_leaves = leaves(driver.observation_space), leaves(driver.action_space)
        self._step = dict.fromkeys(driver.lanes, 0)
        self._is_first = np.ones(self._num_envs, np.bool_)  # The last observation of an env begins an episode.
        self._ended = np.zeros(self._num_envs, np.bool_)  # In its last step.
        self.env_steps = 0
        self.needs_reset = True
        self._started_s = perf_counter()
        self._commit_at = self._started_s + COMMIT_EVERY_S
        self._counted = self._started_s, 0

    @property
    def num_steps(self) -> int:
        return min(self._step.values())

    def make_room(self, lanes: Sequence[Lane], num_steps: int) -> None:
        """Get ready for the next steps of some lanes; hand in what is final, and commit it now and then.

        Raises
        ------
        StorageError
            The file cannot be written.
        ResetNeeded
            All envs must be reset first.
        """
        if num_steps and self.needs_reset:
            raise ResetNeeded("step before reset: a recording needs the first observations; call reset() first")
        self.writer.check()
        self._rows.make_room(max(self._step[lane] for lane in lanes) + num_steps)
        num_final = self.num_steps - 1
        self._rows.hand_in(num_final)
        if (now := perf_counter()) >= self._commit_at:
            seconds, env_steps = now - self._counted[0], self.env_steps - self._counted[1]
            self.writer.add_interval(now - self._started_s, self.env_steps, env_steps / seconds)
            self._rows.commit(num_final)
            self._commit_at, self._counted = now + COMMIT_EVERY_S, (now, self.env_steps)
            self.warn()

    def reset(self, arrays: Sequence[np.ndarray], seed: Seeds, mask: np.ndarray | None, options: Options) -> None:
        """Take down a reset.

        Parameters
        ----------
        arrays
            The observations of all envs after it, for each leaf.
        mask
            The envs that were reset; None is all.
        """
        mask = np.ones(self._num_envs, np.bool_) if mask is None else mask
        is_cut, resets = mask & ~self._is_first & ~self._ended, np.zeros(self._num_envs, RESET)
        for lane in self._lanes:
            step, mine = self._step[lane], np.flatnonzero(mask[lane.envs]) + lane.envs.start
            resets["step"][lane.envs] = step
            block, row = self._rows.at(step)
            if (cut := mine[is_cut[mine]]).size:
                before, row_before = self._rows.at(step - 1)
                before.truncations[row_before, cut] = True
                pairs = zip(before.final_observation_arrays, block.observation_arrays, strict=True)
                for final, observations in pairs:
                    final[row_before, cut] = observations[row, cut]
            for target, array in zip(block.observation_arrays, arrays, strict=True):
                target[row, mine] = array[mine]
        # Natively vectorized envs make of one seed what they like.
        seeds = [None] * self._num_envs if self._is_native else seed_of_each(seed, self._num_envs)
        resets["env_index"], resets["cut"] = np.arange(self._num_envs), is_cut
        resets["seed"] = [-1 if one is None else one for one in seeds]
        resets["options"] = [bool(one) for one in options] if isinstance(options, list | tuple) else bool(options)
        self.writer.add_resets(resets[mask])
        self._is_first[mask], self._ended[mask], self.needs_reset = True, False, False

    def act(self, lanes: Sequence[Lane], arrays: Sequence[np.ndarray]) -> None:
        """Take down the actions of the next step of some lanes, of shape (num_envs of these lanes, ...)."""
        start = 0
        for lane in lanes:
            block, row = self._rows.at(self._step[lane])
            for target, array in zip(block.action_arrays, arrays, strict=True):
                target[row, lane.envs] = array[start : start + lane.num_envs]
            start += lane.num_envs

    def take(
        self, lanes: Sequence[Lane], observations: Sequence[np.ndarray], results: Sequence[np.ndarray], infos: Info
    ) -> None:
        """Take down what followed from the actions; arrays as in `act`, `results` in the order of `RESULTS`."""
        start = 0
        for lane in lanes:
            part, step, envs = slice(start, start + lane.num_envs), self._step[lane], lane.envs
            block, row = self._rows.at(step)
            after, next_row = self._rows.at(step + 1)
            for target, array in zip(after.observation_arrays, observations, strict=True):
                target[next_row, envs] = array[part]
            for target, array in zip(block.results, results, strict=True):
                target[row, envs] = array[part]
            ended = results[1][part] | results[2][part]
            if ended.any():
                self._take_final(lane, step, np.flatnonzero(ended), infos, start)
            self._count(lane, ended[None])
            start += lane.num_envs

    def take_batch(self, lanes: Sequence[Lane], batch: Batch) -> None:
        """Take down what `collect` is about to return of some lanes."""
        actions, start = [leaf.of(batch["actions"]) for leaf in self._action_leaves], 0
        results = [batch["rewards"], batch["terminations"], batch["truncations"]]
        befores = [leaf.of(batch["observations"]) for leaf in self._leaves]
        lasts = [leaf.of(batch["last_observations"]) for leaf in self._leaves]
        extras = [*batch["extras"].values(), batch[VERSION]] if "extras" in batch else []
        for lane in lanes:
            part, step = slice(start, start + lane.num_envs), self._step[lane]
            self._lay(lane, step, len(results[0]), part, actions, results, extras)
            self._lay_observations(lane, step, part, befores, lasts)
            ended = results[1][:, part] | results[2][:, part]
            for row in np.flatnonzero(ended.any(axis=1)).tolist():
                self._take_final(lane, step + row, np.flatnonzero(ended[row]), batch["infos"][row], start)
            self._count(lane, ended)
            start += lane.num_envs

    def _lay(
        self,
        lane: Lane,
        step: int,
        num_steps: int,
        part: slice,
        actions: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        extras: Sequence[np.ndarray],
    ) -> None:
        done = 0
        while done < num_steps:
            block, row = self._rows.at(step + done)
            num_here = min(num_steps - done, block.num_rows - row)
            rows, given = slice(row, row + num_here), slice(done, done + num_here)
            targets = [*block.action_arrays, *block.results, *(block.extra_arrays if extras else [])]
            for target, array in zip(targets, [*actions, *results, *extras], strict=True):
                target[rows, lane.envs] = array[given, part]
            done += num_here

    def _lay_observations(
        self, lane: Lane, step: int, part: slice, befores: Sequence[np.ndarray], lasts: Sequence[np.ndarray]
    ) -> None:
        """Lay the observations after each step: those before the next one, and the last ones."""
        num_steps, done = len(befores[0]), 1
        while done < num_steps:
            block, row = self._rows.at(step + done)
            num_here = min(num_steps - done, block.num_rows - row)
            for target, array in zip(block.observation_arrays, befores, strict=True):
                target[row : row + num_here, lane.envs] = array[done : done + num_here, part]
            done += num_here
        block, row = self._rows.at(step + num_steps)
        for target, array in zip(block.observation_arrays, lasts, strict=True):
            target[row, lane.envs] = array[part]

    def _take_final(self, lane: Lane, step: int, places: np.ndarray, infos: Info, start: int) -> None:
        """Take down the last observations of episodes that end in a step.

        Parameters
        ----------
        places
            Of their envs in the lane; `start` is the place of the lane's first env in the infos.
        """
        block, row = self._rows.at(step)
        envs = places + lane.envs.start
        if self._mode == AutoresetMode.SAME_STEP:  # The observation after the step is the next episode's.
            finals = infos[FINAL_OBS]
            for place, env in zip((places + start).tolist(), envs.tolist(), strict=True):
                for target, leaf in zip(block.final_observation_arrays, self._leaves, strict=True):
                    target[row, env] = leaf.of(finals[place])
            return
        after, next_row = self._rows.at(step + 1)
        pairs = zip(block.final_observation_arrays, after.observation_arrays, strict=True)
        for target, observations in pairs:
            target[row, envs] = observations[next_row, envs]

    def _count(self, lane: Lane, ended: np.ndarray) -> None:
        """Count steps of a lane, given who ended in them, (num_steps, num_envs)."""
        num_steps, num_envs = ended.shape
        num_resets, before, last = 0, self._ended[lane.envs], ended[-1]
        if self._mode == AutoresetMode.NEXT_STEP:  # The step after an end only resets.
            num_resets = int(np.count_nonzero(before)) + int(np.count_nonzero(ended[:-1]))
            self._is_first[lane.envs] = ended[-2] if num_steps > 1 else before
        else:
            self._is_first[lane.envs] = last if self._mode == AutoresetMode.SAME_STEP else False
        self._ended[lane.envs] = last
        self.env_steps += num_steps * num_envs - num_resets
        self._step[lane] += num_steps

    def note_restarts(self, lanes: Sequence[Lane], restarts: Sequence[LaneRestart], all_infos: Sequence[Info]) -> None:
        """Take down envs that failed and were made again; they are in the infos, unless nobody asked for infos.

        Call it before the rows are taken.
        """
        for restart in restarts:
            self.writer.add_fault(restart.env_index, self._step[restart.lane] + restart.row, restart.message)
        for row, infos in enumerate(all_infos):
            if "_env_error" in infos:
                indices = indices_of(lanes)
                for place in np.flatnonzero(infos["_env_error"]).tolist():
                    env = int(indices[place])
                    lane = next(lane for lane in lanes if lane.envs.start <= env < lane.envs.stop)
                    self.writer.add_fault(env, self._step[lane] + row, str(infos["env_error"][place]))

    def finish(self) -> None:
        """Complete the file and give it its name, once; without a step, leave no file.

        Rows that fast ranks have and slow ones have not are left out.

        Raises
        ------
        StorageError
            The file cannot be written; what is committed stays in the `.part`.
        """
        if self._is_finished or os.getpid() != self._pid:
            return
        self._is_finished = True
        try:
            if not self.num_steps:
                self.writer.discard()
                return
            self._rows.finish(self.num_steps)
            seconds = perf_counter() - self._started_s
            self.writer.add_interval(seconds, self.env_steps, self.env_steps / seconds)
            self.writer.finish(Ending(utc_now(), self.env_steps, seconds, self._reports(), [], complete=True))
            self.warn()
        finally:
            self.writer.release()

    def _reports(self) -> Reports:
        """Return what the file says of each rank."""
        seconds = dict.fromkeys(PHASES, 0.0)
        return [
            {"rank": rank, "host": host, "num_envs": sum(map(len, self._division.envs_of(rank))), "seconds": seconds}
            for rank, host in enumerate(self._hosts)
        ]

    def warn(self) -> None:
        """Tell the user of wrong values that were stored, once for each kind."""
        values = self.writer.values
        while values is not None and values.warnings:
            words = values.warnings.pop(0).replace("--check-bounds", "check_bounds=True")
            say(f"mpi_rollout: {words.replace('--check-finite', 'check_finite=True')}\n")
