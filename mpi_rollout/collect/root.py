"""What the root does in a run, in this order: start or resume, collect, measure the limit in between, end."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.collect.collector import Collector, CollectorOptions
from mpi_rollout.collect.episode_goal import make_goal
from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.collect.monitor import LostRanks, Monitor, RunState
from mpi_rollout.collect.replay import bring_back, check_columns, check_promise, load, say_resumed
from mpi_rollout.collect.run_end import RunEnd
from mpi_rollout.collect.team import RankTeam
from mpi_rollout.collect.trace import Trace
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import FORMATS, MAKE_POLICY
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.drive.actions import (
    ActionSource,
    ModelActions,
    PolicyActions,
    PolicyOnRanks,
    RandomActions,
    RankActions,
    ranks_draw,
    too_short,
)
from mpi_rollout.drive.blocks import Discard
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.fragments import prepare_lengths
from mpi_rollout.drive.recall import Recall
from mpi_rollout.envs.bare import Limit
from mpi_rollout.envs.repeating import ADVICE, not_repeated
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import ActionError, DataError, Interrupted, PolicyError, RolloutError, as_flag
from mpi_rollout.exchange import job_end
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.policies.sources import load_model
from mpi_rollout.process import hash_seed
from mpi_rollout.process.console import name_of_stop, say
from mpi_rollout.process.host import check_blocks
from mpi_rollout.process.start import shadowing
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.storage.shard_files import name_now
from mpi_rollout.storage.status import NoStatus, Status
from mpi_rollout.text import traceback_of, words_of

if TYPE_CHECKING:
    # These import h5py: a worker's imports are the job's start-up time.
    from mpi_rollout.storage.output import ClaimedOutput
    from mpi_rollout.storage.shard_set import ClaimedShards
    from mpi_rollout.storage.writer import Writer

    Claimed = ClaimedOutput | ClaimedShards

NUM_PARTS = 5  # The parts of a run whose limit is measured before, between and after them.
NUM_BLOCKS = 3
UNREAD_NBYTES, UNREAD_ROWS = 2**20, 2**10


@contextmanager
def told_loading(policy: PolicySource, worker: Worker, progress: str) -> Iterator[None]:
    """Say what takes long where a policy's package is imported first; and at once that a signal was heard meanwhile."""
    form = FORMATS.get(policy.kind)
    if form is None or form.package in sys.modules:
        yield
        return
    if progress != "none":
        say(f"mpi_rollout: loading {policy.name} with {form.package}\n")

    def answer() -> None:
        worker.on_stop = on_stop  # Once.
        name = name_of_stop(worker.stop_signal)
        say(f"mpi_rollout: stopped by {name}: ends when {policy.name} is loaded, or at once after a second signal\n")

    on_stop, worker.on_stop = worker.on_stop, answer
    try:
        yield
    finally:
        worker.on_stop = on_stop


class Root:
    """Drives one run, or a team's part of it; `output` is what there is of it already."""

    def __init__(
        self,
        team: RankTeam,
        policy: PolicySource,
        output: "Claimed",
        worker: Worker,
        facts: EnvFacts,
        hosts: Sequence[str],
        trace: Trace,
    ):
        config, self._hosts, self._all_hosts = team.config, team.hosts or hosts, hosts
        self._config, self._output, self._facts, self._team = config, output, facts, team
        self._policy = policy
        self._state = RunState(
            output.past, output.checks, facts.reproducibility != Reproducibility.SLICE, rank=worker.rank
        )
        self._leaders = leaders = team.leaders or Leaders(SingleRankComm())  # type: ignore[arg-type]
        self._num_before, self._old_nbytes = leaders.past(self._state.num_past, output.old_nbytes)
        self._trace = trace
        self._driver = Driver(worker.exchanges, worker, config.actions)
        self._status = Status(config.path, config.num_steps, config.num_episodes) if team.speaks else NoStatus()
        self._monitor = Monitor(config, self._driver, self._state, self._status, leaders)
        worker.on_stop = self._monitor.progress.close  # Launchers do not wait long.
        lost_ranks = LostRanks(config, self._driver, dict(zip(team.ranks, self._hosts, strict=True)), say)
        self._driver.on_loss = lambda ranks: lost_ranks.note(ranks, self._state)
        about = config, self._driver, self._state, self._status, self._monitor, lost_ranks, trace
        self._end = RunEnd(team, leaders, *about)

    def drive(self) -> int:
        """Run, and let all ranks out with the exit code that is returned."""
        try:
            code = self._drive()
        except BaseException as error:  # This ends the job at once; whoever called says why.
            is_stopped = isinstance(error, KeyboardInterrupt)
            code = Interrupted.exit_code if is_stopped else RolloutError.exit_code
            state = "interrupted" if is_stopped else "failed"
            self._end.tell_status(state, code, words_of(error), self._state.num_safe, self._end.is_resumable)
            raise
        self._output.release()  # Others may write there: this run has told how it ended.
        if self._state.writer is not None:
            self._state.writer.release()
        if self._team.shard_set is not None:
            self._team.shard_set.release()
        self._driver.stop(code)
        return code

    def _drive(self) -> int:
        try:
            return self._end.complete(self._collect())
        except (DataError, PolicyError) as error:  # The policy's actions; what envs give comes as RankError.
            error.args = (f"{self._state.place}: ", *error.args)
            return self._end.fail(error)
        except RolloutError as error:
            return self._end.fail(error)
        except Exception as error:
            if job_end.is_loss(error):
                raise
            words = filter(None, (f"{self._state.place}: {words_of(error)}", shadowing(error, is_named=True)))
            say(traceback_of(error))
            return self._end.fail(RolloutError("; ".join(words)))

    def _collect(self) -> Collector:
        for words in filter(None, self._warnings()):
            say(f"mpi_rollout: {words}\n")
        past = self._state.past
        self._lengths = prepare_lengths(self._config, self._driver)
        with told_loading(self._policy, self._driver.worker, self._config.progress):
            self._source = self._make_source()
        if past is None:
            collector = self._make_collector({})
            collector.start()
        else:
            collector = self._resume(past)
        self._driver.say_notices(as_flag)
        self._trace.begin(self._driver, lambda: collector.num_steps)
        before = self._measure_limit() if self._config.measure_limit else 0.0
        for num_steps in self._parts():
            if collector.is_over:
                break
            rate = self._advance(collector, num_steps)
            if self._config.measure_limit:
                after = self._measure_limit()
                self._state.limit.append((rate, (before + after) / 2))
                before = after
        return collector

    def _warnings(self) -> Iterator[str]:
        """Yield what the user should know before the first step; nothing is ""."""
        shard_set = self._team.shard_set
        yield self._output.warning if shard_set is None else shard_set.warning
        yield self._output.dropped
        if self._team.speaks and hash_seed.in_use() == hash_seed.RANDOM:
            yield hash_seed.WARNING
        if not_repeating := not_repeated(self._facts.seed_check):
            yield f"{not_repeating}; `verify --replay` will not find the same data; {ADVICE}"

    def _make_source(self) -> ActionSource:
        """Load the policy, on all ranks if they ask it; return where the actions come from."""
        config, policy, driver, most = self._config, self._policy, self._driver, self._lengths.most
        if config.is_random:
            by_env = config.num_envs, config.seed, config.first_env
            random = RandomPolicy(driver.action_space, *by_env)
            return RankActions(driver) if ranks_draw(config, driver, most) else RandomActions(driver, random)
        if config.asks_on_ranks:
            by_env = config.block, config.seed, config.first_env
            return RankActions(driver, PolicyOnRanks(driver, policy, config.actions, *by_env))
        spaces = driver.observation_space, driver.action_space
        model = driver.worker.policy.model or load_model(policy, *spaces)
        if policy.call is not None and not config.asks_in_blocks and not model.takes:
            return PolicyActions(driver, policy.call, most)
        if most > 1:
            raise too_short(most, "leave out --policy-on root" if config.has_model else f"give a {MAKE_POLICY}")
        make = partial(
            BlockPolicy,
            model,
            *spaces,
            block=config.block,
            seed=config.seed,
            has_reset_rows=self._facts.has_reset_rows,
            first_env=config.first_env,
        )
        return ModelActions(driver, make, policy.name)

    def _resume(self, past: Past) -> Collector:
        """Go on from the last step that an earlier start of the run committed."""
        from mpi_rollout.storage.tail import not_continued

        self._status.tell("running", num_steps=self._num_before)
        source = self._output.source if not self._team.run else name_now(f"{self._config.path}.part")
        try:
            return self._go_on_from(past, source)
        except ActionError:  # It is the policy's.
            raise
        except DataError as error:
            raise not_continued(error, source) from error

    def _go_on_from(self, past: Past, source: str) -> Collector:
        """Bring the envs back to where they stood after `past`; `source` is the file of the run, in messages."""
        from mpi_rollout.data.columns import columns_of
        from mpi_rollout.storage.untrusted import parsed

        with closing(self._output.open_past()) as stored:  # It stays open also when another file has taken its place.
            columns, start = columns_of(stored), perf_counter()
            check_promise(past, self._facts.reproducibility, source)
            check_columns(self._driver.exchanges.contents, str(stored.attributes["spaces"]), source)
            then = parsed(stored.attributes, "versions", dict).get(hash_seed.VARIABLE, "")
            why = hash_seed.suspicion(then, hash_seed.in_use())
            lost = bring_back(self._driver, past, columns, self._monitor.check_stop, why)
            self._state.catch_up_s = perf_counter() - start
            if past.num_steps < self._config.num_steps:  # Else only the file is to be closed.
                self._source.resume(Recall(self._driver, past, lost, columns, self._monitor.check_stop))
            running = past.num_steps - np.minimum(past.starts, past.num_steps)
            self._state.env_steps_before = int(stored.ended["length"].sum() + running.sum())
            if self._team.speaks or lost:
                say_resumed(source, past, (self._num_before, self._config.num_steps), lost, self._state.catch_up_s, why)
            collector = self._make_collector(lost)
            num_ended = int((past.starts > past.num_steps).sum()) + len(lost)
            collector.resume(past.num_steps, num_ended, lambda block: load(block, past, lost, columns))
        return collector

    def _make_collector(self, lost: Mapping[int, int]) -> Collector:
        """Make the file and what fills it; from then on the run is under way."""
        config, sink = self._config, self._make_sink(lost)
        self._status.tell("running", num_steps=self._num_before)
        reset_seed = config.seed if self._facts.is_native else None
        goal = make_goal(config, self._facts.has_reset_rows, self._state.past, lost)
        options = CollectorOptions(NUM_BLOCKS, config.batch_size or 1, reset_seed, lengths=self._lengths, goal=goal)
        self._state.collector = Collector(self._driver, self._source, sink, options, self._monitor)
        self._driver.clock.lap("other")  # No step waited while the file was made.
        return self._state.collector

    def _make_sink(self, lost: Mapping[int, int]) -> "Writer | Discard":
        # h5py is for the root alone: a worker's imports are the job's start-up time.
        from mpi_rollout.storage import schema
        from mpi_rollout.storage.ownership import check_free_space
        from mpi_rollout.storage.writer import Writer

        contents = self._driver.exchanges.contents
        nbytes = contents.row_nbytes(self._config.num_envs)
        # All shards of a set have chunks of as many rows, whoever writes how many of them.
        num_rows = schema.rows_per_block(contents.row_nbytes(self._team.widest), self._config.num_steps)
        if contents.counts_only:
            num_rows = max(self._lengths.most, UNREAD_ROWS)
        else:
            if not self._config.trajectories:  # Only the policy reads the blocks: they stay in the core's cache.
                num_rows = min(num_rows, max(self._lengths.most, UNREAD_NBYTES // nbytes))
            check_blocks(NUM_BLOCKS * num_rows * nbytes)
        whole = self._team.whole
        if self._team.speaks:  # Of all teams: their shards are in one folder.
            size = check_free_space(whole, contents.row_nbytes(whole.num_envs), *self._old_nbytes)
            if size:
                say(f"mpi_rollout: {size}\n")
        blocks = [self._driver.block(num_rows) for _ in range(NUM_BLOCKS)]
        attributes = self._attributes(self._config, self._hosts)
        self._begin_set()
        file = self._output.new_file(self._config, attributes, num_rows, lost, self._monitor.check_own_stop)
        self._state.writer = Writer(file, blocks if self._config.trajectories else [])
        return self._state.writer if self._config.trajectories else Discard(blocks)

    def _attributes(self, config: RolloutConfig, hosts: Sequence[str]) -> dict[str, object]:
        contents = self._driver.exchanges.contents
        attributes = self._facts.attributes(config, hosts, contents.extras, contents.kept_infos)
        return attributes | {"policy_sha256": self._policy.sha256}

    def _begin_set(self) -> None:
        """Make what leads to the shards, or wait for it, where the run writes some."""
        team = self._team
        if team.shard_set is not None:
            team.shard_set.begin(team.whole, self._attributes(team.whole, self._all_hosts))
        if not self._leaders.begin():
            raise Interrupted(f"{self._state.place}: stopped, because another rank ends the run")

    def _parts(self) -> list[int]:
        """Return the numbers of steps that the run takes at a time: the limit is measured in between."""
        num_left = self._config.num_steps - self._state.num_past
        if num_left == 0:  # The run was stopped when it had only to close its file.
            return []
        num_parts = min(NUM_PARTS, num_left) if self._config.measure_limit else 1
        least, num_larger = divmod(num_left, num_parts)
        return [least + 1] * num_larger + [least] * (num_parts - num_larger)

    def _advance(self, collector: Collector, num_steps: int) -> float:
        """Take steps and have them committed; return env steps per second, all of that included."""
        clock, tally, state = self._driver.clock, collector.tally, self._state
        clock.restart()
        start, env_steps, before = clock.now, tally.env_steps, dict(clock.seconds)
        try:
            collector.advance(num_steps)
            if self._config.trajectories:
                collector.hand_over()
                state.file.drain()
            clock.lap("write")
        finally:
            state.seconds += perf_counter() - start
            for phase, seconds in clock.seconds.items():
                state.phases[phase] += seconds - before[phase]
        return (tally.env_steps - env_steps) / (clock.now - start)

    def _measure_limit(self) -> float:
        rate = sum(self._driver.call_ranks(self._driver.service(Limit).measure, self._config.limit_s))
        self._driver.clock.lap("other")
        self._monitor.pause()
        return rate
