"""The loop: observations to the policy, its actions to the envs, what follows into blocks.

Index: row t of a block has the observation that the policy saw, the action that it chose and what followed; the
next observation goes to row t + 1, which may be row 0 of the next block.  After an episode's end comes one row
that is no transition: its action is ignored, its reward is 0, it leads to the next episode's first observation.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from mpi_rollout.collect.tally import Tally
from mpi_rollout.core.layout import Block, leaves, rows_of, tree_of
from mpi_rollout.errors import PolicyError, SignalInterrupt, words_of
from mpi_rollout.exchange.destination import Destination
from mpi_rollout.exchange.exchange import Command
from mpi_rollout.policies.random import Policy, RandomPolicy
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.ranks.driver import Driver, Lane


class Sink(Protocol):
    """Where full blocks go: `storage.Writer`, or `Discard`.

    `num_rows` is the length of its blocks.
    """

    num_rows: int

    def acquire(self) -> Block:
        """A block to fill; waits for one."""

    def submit(self, block: Block, num_rows: int) -> None:
        """Take the first `num_rows` rows and the observations after them, where the block has those.

        A full block comes back by `acquire`; another goes on growing and is submitted again.
        """


class Discard:
    """Where blocks go when only the throughput counts."""

    def __init__(self, blocks: list[Block]):
        self._blocks, self._turn, self.num_rows = blocks, 0, blocks[0].num_rows

    def acquire(self) -> Block:
        self._turn += 1
        return self._blocks[self._turn % len(self._blocks)]

    def submit(self, block: Block, num_rows: int) -> None:
        pass


@dataclass(eq=False)
class LaneProgress:
    """How far one lane is: `step` steps taken, the next one goes to a row, what it leads to into the row after."""

    lane: Lane
    step: int = 0
    row: int = 0
    next_row: int = 0
    block: Any = None
    next_block: Any = None


@dataclass(frozen=True, eq=False)
class OpenBlock:
    """A block that is being filled, and how each lane's slots are laid into it."""

    block: Block
    destinations: dict[Lane, Destination]


class Collector:
    """Collect steps of all envs into blocks.

    Lanes go on by themselves, as far as there are blocks; a step counts when all lanes have taken it.

    Parameters
    ----------
    num_blocks
        How many the sink has: as many can be filled at a time.
    batch_size
        With first ready, how many ranks' envs the policy is given at least.
    reset_seed
        For natively vectorized envs; others have their episodes' seeds.
    on_look
        Called with this collector about every `look_every_s` seconds between two steps, and at the end of `advance`.
    on_fault
        Called with env index, step and failure of each env that was made anew, before the sink has that step; -1 is
        the first reset.
    commit_every_s
        A block that fills slowly is handed to the sink now and then as far as it is.

    Attributes
    ----------
    num_steps
        Steps that all envs have taken.
    """

    def __init__(
        self,
        driver: Driver,
        policy: Policy,
        sink: Sink,
        num_blocks: int,
        on_look: Callable[["Collector"], None],
        on_fault: Callable[[int, int, str], None],
        batch_size: int = 1,
        reset_seed: int | None = None,
        look_every_s: float = 0.5,
        commit_every_s: float = 10.0,
    ):
        self.driver, self.policy, self.sink, self.clock = driver, policy, sink, driver.clock
        self.tally = Tally(driver.exchanges)
        self.num_steps = 0
        self._num_blocks, self._batch_size, self._reset_seed = num_blocks, batch_size, reset_seed
        self._on_fault = on_fault
        self._on_look, self._look_every_s, self._commit_every_s = on_look, look_every_s, commit_every_s
        self._is_random = isinstance(policy, RandomPolicy)
        self._tracks = {lane: LaneProgress(lane) for lane in driver.lanes}
        self._num_slowest = len(self._tracks)  # Lanes that have taken `num_steps` steps and no more.
        self._made: dict[int, OpenBlock] = {}
        self._open: deque[OpenBlock] = deque()  # In the order of their steps.
        self._counted = 0
        self._look_at = self._commit_at = 0.0

    def start(self) -> None:
        """Reset all envs; the first observations go to row 0."""
        first = self._fresh_block(0)
        self.driver.do(Command.RESET, self._reset_seed)
        for _, env_index, message in self.driver.made_anew:
            self._on_fault(env_index, -1, message)
        self.driver.made_anew = []
        for track in self._tracks.values():
            track.block = first
            first.destinations[track.lane].lay_observations(0)
        self._commit_at = perf_counter() + self._commit_every_s
        self.clock.restart()

    def go_on(self, num_steps: int, num_ended: int, load: Callable[[Block], None]) -> None:
        """Go on with a run of which there are `num_steps` steps, its envs being where they were.

        Parameters
        ----------
        num_ended
            Envs whose episode ended in the last of them.
        load
            Fills a block with what there is of its rows.
        """
        num_rows = self.sink.num_rows
        first = self._fresh_block(num_steps - num_steps % num_rows)
        load(first.block)
        self.num_steps, self._counted = num_steps, num_steps % num_rows
        self.tally.go_on(num_ended)
        for track in self._tracks.values():
            track.block, track.row, track.step = first, self._counted, num_steps
        self._commit_at = perf_counter() + self._commit_every_s
        self.clock.restart()

    def _fresh_block(self, start: int) -> OpenBlock:
        block = self.sink.acquire()
        block.start = start
        if id(block) not in self._made:
            self._made[id(block)] = OpenBlock(block, self.driver.destinations(block))
        self._open.append(self._made[id(block)])
        self.clock.lap("write")
        return self._open[-1]

    def advance(self, num_steps: int) -> None:
        """Take steps.  After an error, all steps before it are still there for `hand_over`."""
        stop = self.num_steps + num_steps
        waiting = [track for track in self._tracks.values() if track.step < stop]
        while waiting or self.driver.under_way:
            going, parked = [], []
            for track in waiting:
                (going if self._has_room(track) else parked).append(track)
            waiting = parked
            for batch in [[track] for track in going] if self._is_random else [going]:
                if batch:
                    self._act(batch)
            lanes = self.driver.await_some(self._batch_size)
            failed = self._take_faults() if self.driver.made_anew else ()
            for lane in lanes:
                track = self._tracks[lane]
                self._lay(track, failed)
                if track.step < stop:
                    waiting.append(track)
            self.clock.lap("gather")
            if self.clock.now >= self._look_at or self.driver.stop_signal:
                self.look()
        self.look()

    def _take_faults(self) -> list[int]:
        """Tell of the envs that were made anew in the steps that have just come; return which."""
        faults = self.driver.made_anew
        for lane, env_index, message in faults:
            self._on_fault(env_index, self._tracks[lane].step, message)
        self.driver.made_anew = []
        return [env_index for _, env_index, _ in faults]

    def _has_room(self, track: LaneProgress) -> bool:
        """Find where the next step of a lane goes.

        Before its order is out: once it is, its slots must be awaited, whatever the writer says.
        """
        if track.row + 1 < track.block.block.num_rows:
            track.next_block, track.next_row = track.block, track.row + 1
            return True
        place = self._open.index(track.block) + 1
        if place == len(self._open):
            if place == self._num_blocks:
                return False  # Slower lanes still fill the first of these.
            self._fresh_block(self._open[-1].block.start + self._open[-1].block.num_rows)
        track.next_block, track.next_row = self._open[place], 0
        return True

    def _act(self, tracks: list[LaneProgress]) -> None:
        """Ask the policy what some lanes' envs do, and send it."""
        if self._is_random:
            actions = self._random_actions(tracks[0])
        else:
            observations = self._observations(tracks)
            try:
                with ends_forked:
                    actions = self.policy(observations)
            except SignalInterrupt:
                raise
            except BaseException as error:
                raise PolicyError(f"policy: {words_of(error)}") from error
        self.clock.lap("policy")
        self.driver.send([track.lane for track in tracks], actions, self._is_random)
        for track in tracks:
            for array, sent in zip(track.block.block.action_arrays, track.lane.exchange.action_arrays, strict=True):
                array[track.row, track.lane.envs] = sent

    def _random_actions(self, track: LaneProgress) -> Any:
        lane = track.lane
        if lane.is_marked and lane.exchange.layout.infos:
            packed, has_mask = map(lane.exchange.take, lane.exchange.columns.info_arrays[0])
            if has_mask.any():
                return self.policy.by_masks(track.step, lane.envs, has_mask, packed)
        return rows_of(self.policy.at(track.step), lane.envs)

    def _observations(self, tracks: list[LaneProgress]) -> Any:
        """Copies of the last observations of some lanes' envs, C-contiguous.

        The policy may write into them: what it gets shares no memory with the block, which is stored.
        """
        views = [track.block.block.observations_of(track.row, track.lane.envs) for track in tracks]
        if isinstance(views[0], np.ndarray):
            return np.concatenate(views)
        space = self.driver.observation_space
        return tree_of(space, (np.concatenate([leaf.of(view) for view in views]) for leaf in leaves(space)))

    def _lay(self, track: LaneProgress, failed: Sequence[int]) -> None:
        """Take in what a lane's step gave; of envs that have failed, the observation before stays."""
        lane = track.lane
        track.next_block.destinations[lane].lay_observations(track.next_row)
        for index in failed:  # After a resumption their new ranks do not know it.
            if lane.envs.start <= index < lane.envs.stop:
                before, after = (each.block.observation_arrays for each in (track.block, track.next_block))
                for source, target in zip(before, after, strict=True):
                    target[track.next_row, index] = source[track.row, index]
        track.block.destinations[lane].lay_results(track.row)
        track.block, track.row = track.next_block, track.next_row
        track.step += 1
        if track.step - 1 == self.num_steps:
            self._num_slowest -= 1
            if self._num_slowest == 0:
                self._move_on()

    def _move_on(self) -> None:
        """All lanes have taken another step: count it; hand in the blocks that this completes."""
        steps = [track.step for track in self._tracks.values()]
        self.num_steps = min(steps)
        self._num_slowest = steps.count(self.num_steps)
        while self.num_steps >= self._open[0].block.start + self._open[0].block.num_rows:
            block = self._open[0].block
            self._count(block.num_rows)
            self._open.popleft()
            self._counted = 0
            self.clock.lap("gather")  # The ranks were waited for, not the disk.
            self.sink.submit(block, block.num_rows)
            self._commit_at = perf_counter() + self._commit_every_s
            if self._is_random:
                self.policy.forget(self.num_steps)
            self.clock.lap("write")

    def lose(self, rank: int) -> range:
        """Have the envs of a rank that is gone stay as they were before the step under way; return their indices."""
        [track] = self._tracks.values()
        exchange = track.lane.exchange
        envs = exchange.partition.envs_of(rank)
        seen = [array[track.row, envs.start : envs.stop] for array in track.block.block.observation_arrays]
        exchange.still(rank, seen)
        self._count(self._row)  # With the ranks that there were.
        self.driver.exchanges.num_stepping -= 1
        return envs

    @property
    def _row(self) -> int:
        """Rows of the oldest open block that are complete."""
        return self.num_steps - self._open[0].block.start

    def _count(self, stop: int) -> None:
        """Make columns of the rows since the last count, and count them."""
        if stop > self._counted:
            oldest = self._open[0]
            for destination in oldest.destinations.values():
                destination.unpack(self._counted, stop)
            self.tally.add(oldest.block, self._counted, stop)
            self._counted = stop

    def look(self) -> None:
        """Count what came since the last look; hand over a block that is slow to fill; tell who wants to know."""
        self._count(self._row)
        if self.clock.now >= self._commit_at:
            self.hand_over()
        self._on_look(self)
        self.clock.lap("other")
        self._look_at = self.clock.now + self._look_every_s

    def hand_over(self) -> None:
        """Give the sink all steps so far."""
        self._count(self._row)
        self.sink.submit(self._open[0].block, self._row)
        self._commit_at = perf_counter() + self._commit_every_s
