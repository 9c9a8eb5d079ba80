"""The loop: observations to the policy, its actions to the envs, what follows into blocks.

Index: row t of a block has the observation that the policy saw, the action that it chose and what followed; the
next observation goes to row t + 1, which may be row 0 of the next block.  After an episode's end comes one row
that is no transition: its action is ignored, its reward is 0, it leads to the next episode's first observation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from mpi_rollout.collect.tally import Tally
from mpi_rollout.core.layout import Block
from mpi_rollout.drive.actions import Actor, AskedPolicy, Recall
from mpi_rollout.drive.blocks import LaneProgress, OpenBlock, OpenBlocks, Sink
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.fragments import FragmentLengths
from mpi_rollout.drive.lanes import Lane
from mpi_rollout.errors import RankError
from mpi_rollout.exchange.orders import Command


class Listener(Protocol):
    """Who looks after a run between two steps."""

    def on_look(self, collector: "Collector") -> None:
        """Hear of the run now and then, and at the end of `advance`; may raise to end it."""

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        """Hear of an env that was restarted, before the sink has that step; -1 is the first reset."""


class NoListener:
    """Nobody looks after the run."""

    def on_look(self, collector: "Collector") -> None:
        pass

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        pass


@dataclass(frozen=True)
class CollectorOptions:
    """How steps are collected.

    Parameters
    ----------
    num_blocks
        How many blocks the sink has: as many can be filled at a time.
    batch_size
        With first ready, the policy is given the envs of at least so many ranks.
    reset_seed
        For natively vectorized envs; others have the seeds of their episodes.
    look_every_s
        Seconds between two looks of the listener.
    commit_every_s
        Seconds after which a block that fills slowly is handed to the sink as far as it is.
    lengths
        Of fragments.
    inference
        Who chooses random actions: root, workers, or auto.
    """

    num_blocks: int
    batch_size: int = 1
    reset_seed: int | None = None
    look_every_s: float = 0.5
    commit_every_s: float = 10.0
    lengths: FragmentLengths = field(default_factory=FragmentLengths)
    inference: str = "root"


class Collector:
    """Collect steps of all envs into blocks.

    Lanes go on by themselves, as far as there are blocks; a step counts when all lanes have taken it.

    Attributes
    ----------
    num_steps
        Steps that all envs have taken.
    """

    def __init__(
        self,
        driver: Driver,
        policy: AskedPolicy,
        sink: Sink,
        options: CollectorOptions,
        listener: Listener | None = None,
    ):
        self.driver, self.sink, self.clock = driver, sink, driver.clock
        self.tally = Tally(driver.exchanges)
        self.num_steps = 0
        self._blocks = OpenBlocks(driver, sink, options.num_blocks)
        self.actor = Actor(driver, policy, self._blocks, options.lengths, options.inference)
        self._options, self._listener, self.lengths = options, listener or NoListener(), options.lengths
        self._progress_of: dict[Lane, LaneProgress] = {}
        self._num_slowest = len(driver.lanes)  # Lanes that have taken `num_steps` steps and no more.
        self._num_counted = 0  # Rows of the oldest open block.
        self._look_at = self._commit_at = 0.0

    def start(self) -> None:
        """Reset all envs; the first observations go to row 0."""
        first = self._blocks.open(0)
        self.driver.do(Command.RESET, self._options.reset_seed)
        for restart in self.driver.restarts:
            self._listener.on_fault(restart.env_index, -1, restart.message)
        self.driver.restarts = []
        for unpacker in first.unpackers.values():
            unpacker.lay_observations(0)
        self._begin(first)

    def resume(
        self, num_steps: int, num_ended: int, load: Callable[[Block], None], recall: Recall | None = None
    ) -> None:
        """Go on with a run of which there are `num_steps` steps, its envs being where they were.

        Parameters
        ----------
        num_ended
            Envs whose episode ended in the last of them.
        load
            Fills a block with what there is of its rows.
        recall
            Returns the observations of an earlier step: a policy that plans ahead is asked again where it was asked.
        """
        self.actor.recall = recall
        self.num_steps, self._num_counted = num_steps, num_steps % self.sink.num_rows
        first = self._blocks.open(num_steps - self._num_counted)
        load(first.block)
        self.tally.resume(num_ended)
        self._begin(first)

    def _begin(self, block: OpenBlock) -> None:
        self._progress_of = {
            lane: LaneProgress(lane, block, self.num_steps, self._num_counted) for lane in self.driver.lanes
        }
        self._commit_at = perf_counter() + self._options.commit_every_s
        self.clock.restart()

    def advance(self, num_steps: int) -> None:
        """Take steps.  After an error, all steps before it are still there for `hand_over`."""
        stop = self.num_steps + num_steps
        waiting = [progress for progress in self._progress_of.values() if progress.step < stop]
        while waiting or self.driver.under_way:
            waiting = self._post_orders(waiting, stop)
            try:
                lanes = self.driver.await_some(self._options.batch_size)
            except RankError:
                self._lay(self.driver.interrupted)
                raise
            self._lay(lanes)
            waiting += [progress for progress in map(self._progress_of.get, lanes) if progress and progress.step < stop]
            self.clock.lap("gather")
            if self.clock.now >= self._look_at or self.driver.stop_signal:
                self.look()
        self.look()

    def _post_orders(self, waiting: list[LaneProgress], stop: int) -> list[LaneProgress]:
        """Send actions to the lanes that have room for steps before `stop`; return the others."""
        ready: list[LaneProgress] = []
        parked: list[LaneProgress] = []
        for progress in waiting:
            (ready if self._blocks.has_room(progress) else parked).append(progress)
        if ready:
            self.actor.act(ready, stop)
        return parked

    def _lay(self, lanes: Sequence[Lane]) -> None:
        """Take in what the fragments of some lanes gave."""
        restarts, self.driver.restarts = self.driver.restarts, []
        for restart in restarts:
            step = self._progress_of[restart.lane].step + restart.row
            self._listener.on_fault(restart.env_index, step, restart.message)
        for lane in lanes:
            progress = self._progress_of[lane]
            step, block, row = progress.step, progress.open_block, progress.row
            self._options.lengths.note(lane, lane.num_rows)
            progress.take_in(lane.num_rows)
            for restart in restarts:
                if restart.lane is lane:
                    _hold_observation(restart.env_index, block.block, row + restart.row, progress.open_block.block)
            if step == self.num_steps and progress.step > step:
                self._num_slowest -= 1
                if self._num_slowest == 0:
                    self._move_on()

    def _move_on(self) -> None:
        """Count a step that all lanes have taken; hand in the blocks that it completes."""
        steps = [progress.step for progress in self._progress_of.values()]
        self.num_steps = min(steps)
        self._num_slowest = steps.count(self.num_steps)
        while self.num_steps >= self._blocks.oldest.stop:
            self._count(self._blocks.oldest.block.num_rows)
            block, self._num_counted = self._blocks.close_oldest(), 0
            self.clock.lap("gather")  # The ranks were waited for, not the disk.
            self._submit(block, block.num_rows)
            self.actor.forget(self.num_steps)
            self.clock.lap("write")

    def lose(self, rank: int) -> range:
        """Have the envs of a rank that is gone stay as they were before the step under way; return their indices."""
        [progress] = self._progress_of.values()
        exchange = progress.lane.exchange
        envs = exchange.partition.envs_of(rank)
        arrays = progress.open_block.block.observation_arrays
        exchange.end_episodes(rank, [array[progress.row, envs.start : envs.stop] for array in arrays])
        self._count(self._num_rows)  # With the ranks that there were.
        self.driver.exchanges.num_stepping -= 1
        return envs

    @property
    def _num_rows(self) -> int:
        """Rows of the oldest open block that are complete."""
        return self.num_steps - self._blocks.oldest.start

    def _count(self, stop: int) -> None:
        """Make columns of the rows since the last count, and count them."""
        if stop > self._num_counted:
            oldest = self._blocks.oldest
            for unpacker in oldest.unpackers.values():
                unpacker.unpack(self._num_counted, stop)
            self.tally.add(oldest.block, self._num_counted, stop)
            self._num_counted = stop

    def look(self) -> None:
        """Count what came since the last look; hand over a block that is slow to fill; have the listener look."""
        self._count(self._num_rows)
        if self.clock.now >= self._commit_at:
            self.hand_over()
        self._listener.on_look(self)
        self.clock.lap("other")
        self._look_at = self.clock.now + self._options.look_every_s

    def hand_over(self) -> None:
        """Give the sink all steps so far."""
        self._count(self._num_rows)
        self._submit(self._blocks.oldest.block, self._num_rows)

    def _submit(self, block: Block, num_rows: int) -> None:
        self.sink.submit(block, num_rows)
        self._commit_at = perf_counter() + self._options.commit_every_s


def _hold_observation(env_index: int, block: Block, row: int, next_block: Block) -> None:
    """Have the observation of an env that failed in a step stay: its rank may not know it after a resumption."""
    after, next_row = (block, row + 1) if row + 1 < block.num_rows else (next_block, 0)
    for source, target in zip(block.observation_arrays, after.observation_arrays, strict=True):
        target[next_row, env_index] = source[row, env_index]
