"""The loop: observations to the policy, its actions to the envs, what follows into blocks.

Index: row t of a block has the observation that the policy saw, the action that it chose and what followed; the
next observation goes to row t + 1, which may be row 0 of the next block.  After an episode's end comes one row
that is no transition: its action is ignored, its reward is 0, it leads to the next episode's first observation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from gymnasium import spaces

from mpi_rollout.collect.episode_goal import EpisodeGoal
from mpi_rollout.collect.watcher import Episodes, LostRank, Progress, Spending, Watcher
from mpi_rollout.core.columns import with_masks
from mpi_rollout.core.layout import Block, SlotUnpacker
from mpi_rollout.core.spaces import Tree, tree_of
from mpi_rollout.drive.blocks import Blocks
from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.drive.fragments import FragmentLengths
from mpi_rollout.drive.sink import Sink
from mpi_rollout.drive.source import Choice, Source, Span
from mpi_rollout.errors import RankError
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.orders import Command


class Tally:
    """Counts over the rows that were collected so far."""

    def __init__(self, exchanges: Exchanges):
        self.exchanges, self._slowest_s = exchanges, 0.0
        self.env_steps = 0  # Transitions: the row after an episode's end is none.
        self.num_ended = 0  # Envs that the next row only resets.
        self.mean_s = 0.0  # In lockstep, the seconds of the ranks on average, summed over steps.
        self.step_s = np.zeros(exchanges.division.num_ranks)  # Each rank's seconds in its envs.

    def add(self, block: Block, start: int, stop: int) -> None:
        """Count rows start to stop."""
        num_ended = block.num_ended[start:stop].sum(axis=1)
        num_resets = self.num_ended + int(num_ended[:-1].sum())
        self.env_steps += (stop - start) * self.exchanges.division.num_envs - num_resets
        self.num_ended = int(num_ended[-1])
        seconds = block.step_s[start:stop]
        np.add.at(self.step_s, self.exchanges.rank_of_slot, seconds.sum(axis=0))
        for exchange in self.exchanges.all:
            part = seconds[:, exchange.slot_columns]
            self._slowest_s += float(part.max(axis=1).sum())
            self.mean_s += float(part.sum()) / self.exchanges.num_stepping

    @property
    def slowest_s(self) -> float:
        """The seconds of the slowest rank in each step; of the whole run where no rank waits for another."""
        return float(self.step_s.max()) if self.exchanges.division.first_ready else self._slowest_s


class LastRows:
    """What envs have shown last: in the blocks that are being filled, and in the last slots of their lanes."""

    def __init__(self, driver: Driver, blocks: Blocks, lane_of: Mapping[range, Lane]):
        self._blocks, self._lane_of, self._space = blocks, lane_of, driver.observation_space
        self._has_parts = isinstance(self._space, spaces.Dict | spaces.Tuple)
        self._info_names = [leaf.path for leaf in with_masks(driver.exchanges.contents.kept_infos)]

    def observations(self, spans: Sequence[Span]) -> Tree:
        """Copy them: whoever gets them may write there, while the block is stored."""
        places = [(*self._blocks.at(span.step), slice(span.envs.start, span.envs.stop)) for span in spans]
        num_leaves = len(places[0][0].observation_arrays)
        arrays = [
            np.concatenate([block.observation_arrays[leaf][row, envs] for block, row, envs in places])
            for leaf in range(num_leaves)
        ]
        return tree_of(self._space, arrays) if self._has_parts else arrays[0]

    def ends(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        exchange = self._lane_of[span.envs].exchange
        _, *ends = exchange.columns.results
        terminations, truncations = map(exchange.take, ends)
        return terminations, truncations

    def infos(self, span: Span) -> dict[str, np.ndarray]:
        (block, row), envs = self._blocks.at(span.step), slice(span.envs.start, span.envs.stop)
        return {name: array[row, envs] for name, array in zip(self._info_names, block.info_arrays, strict=True)}


@dataclass(frozen=True)
class CollectorOptions:
    """How steps are collected."""

    num_blocks: int  # As many can be filled at a time.
    batch_size: int = 1  # With first ready, the policy is given the envs of at least so many ranks.
    reset_seed: int | None = None  # For natively vectorized envs; others have the seeds of their episodes.
    look_every_s: float = 0.5
    commit_every_s: float = 10.0  # A block that fills slowly is then handed over as far as it is.
    lengths: FragmentLengths = field(default_factory=FragmentLengths)
    goal: EpisodeGoal | None = None  # Ends the run before all steps are taken.
    hosts: Mapping[int, str] = field(default_factory=dict)  # Of the ranks.


class Collector:
    """Collect steps of all envs into blocks.

    Lanes go on by themselves, as far as there are blocks; a step counts when all lanes have taken it.
    """

    def __init__(
        self,
        driver: Driver,
        source: Source,
        sink: Sink,
        options: CollectorOptions,
        watchers: Watcher,
    ):
        self.driver, self.source, self.clock = driver, source, driver.clock
        self.tally = Tally(driver.exchanges)
        self.num_steps = 0  # Steps that all envs have taken.
        self._sink, self._options, self._watchers = sink, options, watchers
        self.lengths, self.goal = options.lengths, options.goal
        self._blocks = Blocks(self._acquire)
        self._lane_of = {lane.env_range: lane for lane in driver.lanes}
        self._last_rows = LastRows(driver, self._blocks, self._lane_of)
        self._are_sent_back = driver.exchanges.contents.has_actions  # The actions that were taken come with the slots.
        self._unpackers: dict[Block, dict[Lane, SlotUnpacker]] = {}
        self._step_of = dict.fromkeys(driver.lanes, 0)  # How many steps each lane has taken.
        self._num_slowest = len(driver.lanes)  # Lanes that have taken `num_steps` steps and no more.
        self._num_counted = 0  # Rows of the oldest open block.
        self._faults: list[tuple[int, int, str]] = []  # Step, env and message of those whose rows are not counted yet.
        self._look_at, self._commit_at = 0.0, perf_counter() + options.commit_every_s
        self._began_at = self._looked_at = 0.0  # The first look, and the last one with new steps; 0 is none.
        self._seen_env_steps, self._env_steps_per_s = 0, np.nan  # At that look.

    def _acquire(self, num_open: int) -> Block | None:
        if num_open == self._options.num_blocks:  # Slower lanes still fill the first of these.
            return None
        block = self._sink.acquire()
        if block not in self._unpackers:
            self._unpackers[block] = self.driver.unpackers(block)
        self.clock.lap("write")
        return block

    def start(self) -> None:
        """Reset all envs; the first observations go to row 0."""
        self._blocks.extend()
        self.driver.do(Command.RESET, self._options.reset_seed)
        for restart in self.driver.restarts:
            self._watchers.on_fault(restart.env_index, -1, restart.message)
        self.driver.restarts = []
        for unpacker in self._unpackers[self._blocks.oldest].values():
            unpacker.lay_observations(0)

    def resume(self, num_steps: int, num_ended: int, load: Callable[[Block], None]) -> None:
        """Go on with a run of which there are `num_steps` steps, its envs being where they were.

        In the last of them the episodes of `num_ended` envs ended; `load` fills a block with what there is of its rows.
        """
        self.num_steps, self._num_counted = num_steps, num_steps % self._sink.num_rows
        self._step_of = dict.fromkeys(self._step_of, num_steps)
        self._blocks.stop = num_steps - self._num_counted
        self._blocks.extend()
        load(self._blocks.oldest)
        self.tally.num_ended = num_ended

    def advance(self, num_steps: int) -> None:
        """Take steps, until the goal is reached.  After an error, all steps before it are there for `hand_over`."""
        stop = self.num_steps + num_steps
        failure: RankError | None = None
        waiting = [lane for lane, step in self._step_of.items() if step < stop]
        while (waiting or self.driver.under_way) and not self.is_over:
            waiting = self._send_orders(waiting, stop)
            try:
                lanes = self.driver.step_and_receive(self._options.batch_size)
            except RankError as error:
                self._take_in(self.driver.interrupted)
                if self.goal is None:
                    raise
                # Lanes that are behind may reach the goal before this step, which then does not count.
                failed = (self._step_of[lane] for lane in self.driver.interrupted if lane.has_failed)
                failure, stop = error, min(stop, min(failed, default=self.num_steps))
                waiting = [lane for lane, step in self._step_of.items() if step < stop]
                continue
            self._take_in(lanes)
            waiting += [lane for lane in lanes if self._step_of[lane] < stop]
            self.clock.lap("gather")
            if self.clock.now >= self._look_at or self.driver.stop_signal:
                self.look()
        if failure is not None and not self.is_over:
            raise failure
        self.look()

    @property
    def is_over(self) -> bool:
        """Whether the goal is reached: what ranks have taken of later steps does not count."""
        return self.goal is not None and not self.goal.num_missing

    def _send_orders(self, waiting: list[Lane], stop: int) -> list[Lane]:
        """Send actions to the lanes that have room for steps before `stop`; return the others."""
        spans, parked = [], []
        for lane in waiting:
            step = self._step_of[lane]
            num_steps = self._blocks.room(step, min(self.lengths.next(lane, step), stop - step))
            if num_steps:
                spans.append(Span(lane.env_range, step, num_steps))
            else:
                parked.append(lane)
        for choice in self.source.actions(spans, self._last_rows) if spans else ():
            self._send(choice)
        return parked

    def _send(self, choice: Choice) -> None:
        """Send the actions of a span, or leave them to the ranks; store them unless they come back with the slots."""
        (envs, step, num_steps), actions, extras = choice
        lane = self._lane_of[envs]
        if actions is not None:
            self.clock.lap("policy")
            num_steps = len(actions[0])
            if not self._are_sent_back:
                block, row = self._blocks.at(step)
                for array, sent in zip(block.action_arrays, actions, strict=False):  # Where nobody reads, it has none.
                    array[row : row + num_steps, lane.envs] = sent
                for array, values in zip(block.extra_arrays, extras, strict=False):
                    array[row, lane.envs] = values
        self.driver.send(lane, actions, num_steps, step)

    def _take_in(self, lanes: Sequence[Lane]) -> None:
        """Lay what the fragments of some lanes gave into blocks."""
        if self.driver.lost_ranks:
            self._lose(self.driver.lost_ranks)
        restarts, self.driver.restarts = self.driver.restarts, []
        for restart in restarts:
            step = self._step_of[restart.lane] + restart.row
            self._faults.append((step, restart.env_index, restart.message))
            if self.goal is not None:
                self.goal.note_faults(step, [restart.env_index])
        for lane in lanes:
            step = self._step_of[lane]
            self.lengths.note(lane, lane.num_rows)
            self._lay(lane, step, lane.num_rows)
            for restart in restarts:
                if restart.lane is lane:
                    self._hold_observation(restart.env_index, step + restart.row)
            self._step_of[lane] = step + lane.num_rows
            if step == self.num_steps and lane.num_rows:
                self._num_slowest -= 1
                if self._num_slowest == 0:
                    self._count_steps()

    def _lay(self, lane: Lane, step: int, num_rows: int) -> None:
        block, row = self._blocks.at(step)
        after = block if row + num_rows < block.num_rows else self._blocks.at(step + num_rows)[0]
        unpacker, num_here = self._unpackers[block][lane], num_rows - (after is not block)
        if num_here:
            unpacker.lay_observations(row + 1, 0, num_here)
        if num_here < num_rows:
            self._unpackers[after][lane].lay_observations(0, num_here, num_rows)
        unpacker.lay_results(row, num_rows)

    def _hold_observation(self, env_index: int, step: int) -> None:
        """Repeat the observation of an env that failed in a step: its rank may not know it after a resumption."""
        (block, row), (after, next_row) = self._blocks.at(step), self._blocks.at(step + 1)
        for source, target in zip(block.observation_arrays, after.observation_arrays, strict=True):
            target[next_row, env_index] = source[row, env_index]

    def _count_steps(self) -> None:
        """Count the steps that all lanes have taken; hand in the blocks that these complete."""
        if self.is_over:
            return
        steps = list(self._step_of.values())
        self.num_steps = min(steps)
        self._num_slowest = steps.count(self.num_steps)
        while not self.is_over and (self._num_rows >= self._sink.num_rows or self._may_be_over()):
            self._count(min(self._num_rows, self._sink.num_rows))
            if self._num_rows < self._sink.num_rows:
                return
            block, self._num_counted = self._blocks.close_oldest(), 0
            self.clock.lap("gather")  # The ranks were waited for, not the disk.
            self._submit(block, block.num_rows)
            self.clock.lap("write")

    def _may_be_over(self) -> bool:
        """Tell whether the rows of the oldest block that are not counted yet may reach the goal."""
        if self.goal is None or self._num_rows == self._num_counted:
            return False
        rows = slice(self._num_counted, self._num_rows)
        num_ended = int(self._blocks.oldest.num_ended[rows].sum())
        return num_ended >= self.goal.num_missing or not self.goal.has_reset_rows

    def _lose(self, ranks: list[int]) -> None:
        """Go on without ranks that were lost in the step under way."""
        self.driver.lost_ranks = []
        self._watchers.on_losses([self._lost(rank) for rank in ranks])

    def _lost(self, rank: int) -> LostRank:
        """Keep the envs of a lost rank as they were before the step under way."""
        [(lane, step)] = self._step_of.items()
        envs = lane.exchange.partition.envs_of(rank)
        block, row = self._blocks.at(step)
        lane.exchange.end_episodes(rank, [array[row, envs.start : envs.stop] for array in block.observation_arrays])
        self._count(self._num_rows)  # These rows have the ranks that there were.
        if self.goal is not None:
            self.goal.note_faults(step, envs)
        self.driver.exchanges.num_stepping -= 1
        return LostRank(rank, self._options.hosts.get(rank, ""), envs.start, len(envs), self.num_steps)

    @property
    def _num_rows(self) -> int:
        """Rows of the oldest open block that are complete."""
        return self.num_steps - self._blocks.oldest.start

    def _count(self, stop: int) -> None:
        """Count the rows since the last count, as far as the goal."""
        if stop > self._num_counted:
            oldest = self._blocks.oldest
            if self.goal is not None:
                stop = self.goal.count(oldest, self._num_counted, stop)
                self.num_steps = oldest.start + stop if self.is_over else self.num_steps
            num_steps = oldest.start + stop
            for step, env_index, message in sorted(fault for fault in self._faults if fault[0] < num_steps):
                self._watchers.on_fault(env_index, step, message)
            self._faults = [fault for fault in self._faults if fault[0] >= num_steps]
            self.tally.add(oldest, self._num_counted, stop)
            self._num_counted = stop

    def look(self) -> None:
        """Count what came since the last look; hand over a block that is slow to fill; tell the watchers."""
        self._count(self._num_rows)
        if self.clock.now >= self._commit_at:
            self.clock.lap("other")
            self.hand_over()
            self.clock.lap("write")
        self._watchers.check()
        now_s, progress = self.clock.now, self.progress()
        self._watchers.on_look(progress)
        self._began_at = self._began_at or now_s
        if progress.interval_s or not self._looked_at:
            self._looked_at, self._seen_env_steps = now_s, progress.env_steps
        self._env_steps_per_s = progress.env_steps_per_s
        self.clock.lap("other")
        self._look_at = self.clock.now + self._options.look_every_s

    def pause(self) -> None:
        """Leave out the time until the next look: rates are of the run alone."""
        self._looked_at = 0.0

    def progress(self) -> Progress:
        """Return how far the run is."""
        num_new = self.tally.env_steps - self._seen_env_steps
        interval_s = self.clock.now - self._looked_at if self._looked_at and num_new else 0.0
        return Progress(
            num_steps=self.num_steps,
            env_steps=self.tally.env_steps,
            num_committed=self._sink.num_committed,
            seconds=self.clock.now - self._began_at if self._began_at else 0.0,
            interval_s=interval_s,
            env_steps_per_s=num_new / interval_s if interval_s else self._env_steps_per_s,
            spent=Spending(self.tally.mean_s, self.tally.slowest_s, dict(self.clock.seconds)),
            episodes=None if self.goal is None else Episodes(self.goal.num_ended, self.goal.num_episodes),
        )

    def hand_over(self) -> None:
        """Give the sink all steps so far."""
        self._count(self._num_rows)
        self._submit(self._blocks.oldest, self._num_rows)

    def commit(self) -> None:
        """Hand over all steps so far, and wait until the sink has committed them."""
        self.hand_over()
        self._sink.drain()

    def _submit(self, block: Block, num_rows: int) -> None:
        self._sink.submit(block, num_rows)
        self._commit_at = perf_counter() + self._options.commit_every_s
