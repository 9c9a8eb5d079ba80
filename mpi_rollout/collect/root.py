"""What the root does in a run, in this order: start or resume, collect in parts, end."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from time import perf_counter

import numpy as np

from mpi_rollout.collect.action_source import make_source
from mpi_rollout.collect.collector import Collector, CollectorOptions
from mpi_rollout.collect.episode_goal import make_goal
from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.collect.limit_meter import NUM_PARTS
from mpi_rollout.collect.replay import bring_back, check_columns, check_promise, load, say_resumed
from mpi_rollout.collect.run_end import RunEnd
from mpi_rollout.collect.run_output import NUM_BLOCKS, RunOutput
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.run_watchers import make_watchers, package_to_load
from mpi_rollout.collect.team import RankTeam
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.fragments import prepare_lengths
from mpi_rollout.drive.recall import Recall
from mpi_rollout.drive.sink import Sink
from mpi_rollout.drive.source import Source
from mpi_rollout.envs.repeating import ADVICE, not_repeated
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import ActionError, DataError, Interrupted, PolicyError, RolloutError, as_flag
from mpi_rollout.exchange import job_end
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.process import hash_seed
from mpi_rollout.process.console import say
from mpi_rollout.process.start import shadowing
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.text import traceback_of, words_of


class Root:
    """Drives one run, or a team's part of it."""

    def __init__(self, team: RankTeam, policy: PolicySource, output: RunOutput, worker: Worker, facts: EnvFacts):
        self._config = team.config
        self._team = team
        self._policy = policy
        self._output = output
        self._facts = facts
        self._host_of_rank = dict(zip(team.ranks, output.hosts, strict=True))
        self._leaders = team.leaders or Leaders(SingleRankComm())  # type: ignore[arg-type]
        self._state = RunState(
            output.past,
            output.past_checks,
            is_continuable=facts.reproducibility != Reproducibility.SLICE,
            rank=worker.rank,
            is_alone=self._leaders.is_alone,
        )
        self._driver = Driver(worker.exchanges, worker, self._config.actions, is_wanted=worker.exchanges.has_arrivals)
        watchers = make_watchers(team, self._leaders, self._driver, self._state, policy, self._host_of_rank)
        self._watchers = watchers.all
        self._own_stops = watchers.own_stops
        self._end = RunEnd(
            team=team,
            leaders=self._leaders,
            config=self._config,
            driver=self._driver,
            state=self._state,
            watchers=watchers.all,
            lost_ranks=watchers.lost_ranks,
            other_teams=watchers.other_teams,
        )

    def on_stop(self, signal: int) -> None:
        """Tell the watchers that this rank was asked to stop, in the handler of a signal."""
        self._watchers.on_stop(signal)

    def drive(self) -> int:
        """Run, and let all ranks out with the exit code that is returned."""
        try:
            code = self._drive()
        except BaseException as error:  # This ends the job at once; whoever called says why.
            self._end.cut(error)
            raise
        self._output.release(self._state.writer)
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
        """Go through the run: begin or resume, then take its steps in parts; the watchers may pause it in between."""
        num_past, old_nbytes = self._state.num_past, self._output.old_nbytes
        self._state.num_before, self._state.old_nbytes = self._leaders.past(num_past, old_nbytes)
        for words in filter(None, self._warnings()):
            say(f"mpi_rollout: {words}\n")
        self._lengths = prepare_lengths(self._config, self._driver)
        self._source = self._load_policy()
        collector = self._begin() if self._state.past is None else self._resume(self._state.past)
        self._driver.say_notices(as_flag)
        self._pause(collector)
        for num_steps in self._parts():
            if collector.is_over:
                break
            self._advance(collector, num_steps)
            self._pause(collector)
        return collector

    def _load_policy(self) -> Source:
        """Load what chooses the actions; say what takes long where a policy's package is imported first."""
        package = package_to_load(self._policy)
        if package and self._config.progress != "none":
            say(f"mpi_rollout: loading {self._policy.name} with {package}\n")
        return make_source(self._config, self._policy, self._driver, self._lengths.most, self._facts.has_reset_rows)

    def _begin(self) -> Collector:
        """Reset the envs of a run that has no steps yet."""
        collector = self._make_collector({})
        collector.start()
        return collector

    def _pause(self, collector: Collector) -> None:
        """Let the watchers do what is no part of the run."""
        self._watchers.on_pause(collector.progress())
        collector.pause()

    def _warnings(self) -> Iterator[str]:
        """Yield what the user should know before the first step; nothing is ""."""
        yield from self._output.warnings()
        if self._team.speaks and hash_seed.in_use() == hash_seed.RANDOM:
            yield hash_seed.WARNING
        if not_repeating := not_repeated(self._facts.seed_check):
            yield f"{not_repeating}; `verify --replay` will not find the same data; {ADVICE}"

    def _resume(self, past: Past) -> Collector:
        """Go on from the last step that an earlier start of the run committed."""
        from mpi_rollout.storage.tail import not_continued

        self._watchers.on_start(self._state.num_before)
        source = self._output.source
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
            lost = bring_back(self._driver, past, columns, self._watchers.check, why)
            self._state.catch_up_s = perf_counter() - start
            if past.num_steps < self._config.num_steps:  # Else only the file is to be closed.
                self._source.resume(Recall(self._driver, past, lost, columns, self._watchers.check))
            running = past.num_steps - np.minimum(past.starts, past.num_steps)
            self._state.env_steps_before = int(stored.ended["length"].sum() + running.sum())
            if self._team.speaks or lost:
                steps = self._state.num_before, self._config.num_steps
                say_resumed(source, past, steps, lost, self._state.catch_up_s, why)
            collector = self._make_collector(lost)
            num_ended = int((past.starts > past.num_steps).sum()) + len(lost)
            collector.resume(past.num_steps, num_ended, lambda block: load(block, past, lost, columns))
        return collector

    def _make_collector(self, lost: Mapping[int, int]) -> Collector:
        """Make the file and what fills it; from then on the run is under way."""
        config, sink = self._config, self._make_sink(lost)
        self._watchers.on_start(self._state.num_before)
        options = CollectorOptions(
            NUM_BLOCKS,
            config.batch_size or 1,
            reset_seed=config.seed if self._facts.is_native else None,
            lengths=self._lengths,
            goal=make_goal(config, self._facts.has_reset_rows, self._state.past, lost),
            hosts=self._host_of_rank,
        )
        self._state.collector = Collector(self._driver, self._source, sink, options, self._watchers)
        self._driver.clock.lap("other")  # No step waited while the file was made.
        return self._state.collector

    def _make_sink(self, lost: Mapping[int, int]) -> Sink:
        """Make the file, when all teams begin; return where the blocks go."""
        contents = self._driver.exchanges.contents
        num_rows = self._output.num_rows(contents, self._lengths.most)
        self._output.say_size(contents, self._state.old_nbytes)
        self._output.begin_set(contents)
        if not self._leaders.begin():
            raise Interrupted(f"{self._state.place}: stopped, because another rank ends the run")
        self._state.writer, sink = self._output.make(self._driver, num_rows, lost, self._own_stops.check)
        return sink

    def _parts(self) -> list[int]:
        """Return the numbers of steps that the run takes at a time: where the limit is measured, that is in between."""
        num_left = self._config.num_steps - self._state.num_past
        if num_left == 0:  # The run was stopped when it had only to close its file.
            return []
        num_parts = min(NUM_PARTS, num_left) if self._config.measure_limit else 1
        least, num_larger = divmod(num_left, num_parts)
        return [least + 1] * num_larger + [least] * (num_parts - num_larger)

    def _advance(self, collector: Collector, num_steps: int) -> None:
        """Take steps and have them committed; add up the time that all of that takes."""
        clock, state = self._driver.clock, self._state
        clock.restart()
        start, before = clock.now, dict(clock.seconds)
        try:
            collector.advance(num_steps)
            collector.commit()
            clock.lap("write")
        finally:
            state.seconds += perf_counter() - start
            for phase, seconds in clock.seconds.items():
                state.phases[phase] += seconds - before[phase]
