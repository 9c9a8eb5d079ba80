"""How a run ends: what is whole is kept, and the user, the status file and the exit code are told the same."""

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.collect.collector import Collector
from mpi_rollout.collect.leaders import Leaders, Outcome
from mpi_rollout.collect.lost_ranks import LostRanks, RankReport
from mpi_rollout.collect.other_teams import OtherTeams
from mpi_rollout.collect.report import RunFigures, merged
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.services import UnstoredInfos
from mpi_rollout.collect.team import RankTeam
from mpi_rollout.collect.watcher import End, Watcher
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import kind_of_name
from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import (
    Interrupted,
    NotContinuedError,
    PolicyError,
    RankError,
    RolloutError,
    StorageError,
    UsageError,
    as_flag,
)
from mpi_rollout.exchange import world
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import STDOUT, fitted, say
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.storage.shard_files import name_now
from mpi_rollout.text import counted, printable, shortened, system_words, words_of

if TYPE_CHECKING:
    from mpi_rollout.storage.shard_set import ClaimedSet

LOOK_EVERY_S = 0.1
MOST_NAMES = 20  # Of infos in a message.


@dataclass
class RunEnd:
    """Ends a run, or a team's part of it, of which `state` says how far it came.

    Each leader says how its team has ended; the first one tells the user, and completes the set of shards.
    """

    team: RankTeam
    leaders: Leaders
    config: RolloutConfig
    driver: Driver
    state: RunState
    watchers: Watcher
    lost_ranks: LostRanks
    other_teams: OtherTeams

    def complete(self, collector: Collector) -> int:
        """Close the file of a team that has taken all of its steps; end the run; return the exit code."""
        figures = self._close(collector, complete=True)
        return self._settle(Outcome(0, self.state.num_safe, figures))

    def fail(self, error: RolloutError) -> int:
        """Keep what is whole; end the run; return the exit code."""
        is_first = not self.leaders.is_to_end()
        kept = self._kept(error)
        return self._settle(
            Outcome(
                error.exit_code,
                self.state.num_safe,
                message=error.shown(as_flag),
                kept=kept,
                stack=error.stack if isinstance(error, RankError | PolicyError) else "",
                is_stopped=isinstance(error, Interrupted),
                is_resumable=self.is_resumable,
                is_first_to_end=is_first,
                is_foreign=isinstance(error, UsageError) and self.leaders.is_alone,
            )
        )

    def _settle(self, outcome: Outcome) -> int:
        """Wait for all teams, and end the run as they have ended; return the exit code.  **Collective** of leaders."""

        def look() -> Outcome | None:
            """Look after the other teams; a stop after this team's end is for them."""
            try:
                self.other_teams.look_after()
            except Interrupted as error:
                return Outcome(error.exit_code, outcome.num_safe, message=error.shown(as_flag), is_stopped=True)
            return None

        outcomes, code = self.leaders.settle(outcome, look), 0
        if outcomes is not None:
            self.watchers.on_stop(0)
            failed = [each for each in outcomes if each.code]
            code = self._tell_failed(outcomes, failed + self.leaders.stops) if failed else self._complete(outcomes)
        return self.leaders.agree_on(code)

    def _tell_failed(self, outcomes: list[Outcome], failed: list[Outcome]) -> int:
        """Say what has failed first: other teams may have been stopped for it."""
        cause = min(failed, key=lambda outcome: (outcome.is_stopped, not outcome.is_first_to_end))
        shard_set, num_safe = self.team.shard_set, min(outcome.num_safe for outcome in outcomes)
        kept = cause.kept if shard_set is None else self._kept_in_shards(num_safe)
        if kept and cause.is_stopped and cause.is_resumable:
            kept += "; the same command continues"
        say(cause.stack)
        say(f"mpi_rollout: {cause.message}{kept}\n")
        is_resumable = all(outcome.is_resumable for outcome in outcomes)
        state = "interrupted" if cause.is_stopped else "failed"
        self.watchers.on_end(End(state, cause.code, cause.message, num_safe, is_resumable, cause.is_foreign))
        if self.config.json:
            say(json.dumps({"error": cause.message + kept, "exit_code": cause.code}) + "\n", STDOUT)
        return cause.code

    def _kept_in_shards(self, num_safe: int) -> str:
        """Say what all shards have; remove a new set of which that is nothing."""
        assert self.team.shard_set is not None
        self.team.shard_set.drop_if_empty(part := self.team.whole.path + ".part", num_safe)
        return f"; all shards have {counted(num_safe, 'step')}, in {name_now(part)}" if num_safe else ""

    def _complete(self, outcomes: list[Outcome]) -> int:
        """Make one data set of shards, if there are any; print the summary."""
        figures, shard_set = merged(self.team, outcomes), self.team.shard_set
        if shard_set is not None and (failed := self._complete_set(shard_set, figures, outcomes[0].num_safe)):
            return self._tell_failed(outcomes, [failed])
        self.watchers.on_end(End("complete", 0, self.team.whole.path, outcomes[0].num_safe))
        if figures is not None:
            text = json.dumps(figures.as_dict()) if self.config.json else "\n".join(fitted(figures.lines(), 4))
            say(f"{text}\n", STDOUT)
        return 0

    def _complete_set(self, shard_set: "ClaimedSet", figures: RunFigures | None, num_steps: int) -> Outcome | None:
        """Make one data set of the shards; return what has failed."""
        from mpi_rollout.storage.schema import INTERVAL, Ending
        from mpi_rollout.storage.set_end import complete_manifest

        ending = Ending(utc_now(), 0, 0.0, [], [], complete=True)
        if figures is not None:
            ending = Ending(
                utc_now(),
                figures.env_steps,
                figures.seconds,
                figures.ranks,
                figures.limit,
                complete=True,
                advice=figures.advice,
            )
        path = self.team.whole.path
        intervals = None if self.leaders.is_alone else np.array(self.leaders.intervals, INTERVAL)
        try:
            complete_manifest(path, ending, intervals, shard_set.replaces)
        except RolloutError as error:
            return Outcome(error.exit_code, num_steps, message=error.shown(as_flag))
        except (OSError, RuntimeError) as error:  # HDF5 reports a full disk as RuntimeError.
            way_out = "make room or move what is there, then the same command continues"
            words = f"cannot write {path}: {system_words(error)}; {way_out}"
            return Outcome(StorageError.exit_code, num_steps, message=words)
        return None

    def _await_check(self) -> None:
        """Let the check of what earlier starts wrote come to its end: a file that gets its name is whole."""
        is_said = self.state.rank != world.ROOT
        while any(check.poll() for check in self.state.past_checks):
            self.watchers.check()
            if not is_said:
                say("mpi_rollout: all steps are taken; compares what earlier starts wrote with its checksums\n")
                is_said = True
            time.sleep(LOOK_EVERY_S)

    def _kept(self, error: RolloutError) -> str:
        """Keep what is whole after an error; return what is said of that.  The error has what failed then, too."""
        self.watchers.on_stop(0)
        self.state.is_continuable &= not isinstance(error, NotContinuedError)
        if self.state.writer is None and self.state.past is not None and isinstance(error, Interrupted):
            return f"; the {steps_before(self.state.num_safe)} in {name_now(self.config.path + '.part')}"
        if self.state.writer is None or isinstance(error, StorageError):
            return ""
        try:
            return self._keep()
        except RolloutError as second:
            error.args = (*error.args, "; then ", *second.args)
            error.exit_code = second.exit_code
            return ""

    def cut(self, error: BaseException) -> None:
        """Tell of an error that ends the job at once, and about which the caller speaks."""
        is_stopped = isinstance(error, KeyboardInterrupt)
        state = "interrupted" if is_stopped else "failed"
        code = Interrupted.exit_code if is_stopped else RolloutError.exit_code
        self.watchers.on_end(End(state, code, words_of(error), self.state.num_safe, self.is_resumable))

    @property
    def is_resumable(self) -> bool:
        return self.state.is_continuable and self.config.trajectories

    def _keep(self) -> str:
        """Commit all steps that are whole; without any, leave nothing behind but what there was."""
        state, collector = self.state, self.state.collector
        num_steps = 0 if collector is None else collector.num_steps
        if num_steps == 0 and state.past is not None:
            return f"; the {steps_before(state.num_safe)} in {state.file.part}"
        if collector is None or num_steps == 0 or not self.config.trajectories:
            state.file.discard()
            return ""
        collector.hand_over()
        figures = self._close(collector, complete=False)
        return f"; the {steps_before(num_steps)} in {figures.file}"

    def _close(self, collector: Collector, complete: bool) -> RunFigures:
        """Close the file, with what the ranks have to report."""
        from mpi_rollout.storage.schema import Ending

        self.watchers.on_stop(0)
        if complete:
            self._await_check()
        state, ranks = self.state, self.lost_ranks.reports()
        NOTICES.hear([rank.pop("notices", {}) for rank in ranks], as_flag)
        if self.config.store_infos == "all" and (names := self._other_infos()):
            what = "mpi_rollout: --store-infos all stores the infos of one episode; not stored are others that came: "
            say(f"{what}{names}; give the names and types of those that are wanted\n")
        figures = self._figures(collector, ranks, complete)
        file = state.file.finish(
            Ending(
                utc_now(),
                collector.tally.env_steps,
                state.seconds,
                ranks,
                state.limit,
                complete=complete,
                advice=figures.advice,
            )
        )
        self.watchers.on_close(collector.progress())
        return replace(figures, file=file, wrong_values=state.file.values.wrong)

    def _other_infos(self) -> str:
        """Return the names of infos that came and are not stored."""
        names_of_ranks = self.driver.call_ranks(self.driver.service(UnstoredInfos).names)
        names = sorted({printable(name) for own in names_of_ranks for name in own})
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return shortened(", ".join(names[:MOST_NAMES])) + more

    def _figures(self, collector: Collector, ranks: list[RankReport], complete: bool) -> RunFigures:
        config, state, tally, exchange = self.config, self.state, collector.tally, self.driver.lanes[0].exchange
        length, is_on_ranks = collector.lengths.longest, collector.source.is_on_ranks
        return RunFigures(
            file=state.file.part,
            num_envs=config.num_envs,
            num_steps=collector.num_steps,
            env_steps=tally.env_steps,
            seconds=state.seconds,
            phases=state.phases,
            ranks=[{key: value for key, value in rank.items() if key != "fault"} for rank in ranks],
            step_s=tally.step_s.tolist(),
            in_lockstep=config.in_lockstep,
            first_ready=config.batch_size is not None,
            slowest_s=tally.slowest_s,
            mean_s=tally.mean_s,
            num_waits=state.file.num_waits,
            limit=state.limit,
            restarts=dict(sorted(state.restarts.items())),
            num_steps_before=state.num_past,
            catch_up_s=state.catch_up_s,
            complete=complete,
            mpi_library=world.library_name(),
            order_bytes=exchange.order.nbytes_of(1 if is_on_ranks else length),
            slot_bytes=length * exchange.layout.nbytes,
            lost=self.lost_ranks.all,
            slept=self.driver.exchanges.way == "sleep",
            fragment_length=length,
            inference="workers" if is_on_ranks else "root",
            num_episodes=None if collector.goal is None else collector.goal.num_ended,
            of_num_episodes=config.num_episodes,
            policy_kind=kind_of_name(config.policy),
            compression=config.compression,
        )


def steps_before(num_steps: int) -> str:
    """Say how many steps were taken before."""
    return f"{counted(num_steps, 'step')} before {'is' if num_steps == 1 else 'are'}"
