"""How a run of several teams ends: each leader says how its team has, and the first one completes the set of shards."""

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.collect.leaders import Leaders, Outcome
from mpi_rollout.collect.report import RunFigures
from mpi_rollout.collect.run_end import RunEnd
from mpi_rollout.collect.team import RankTeam
from mpi_rollout.errors import Interrupted, PolicyError, RankError, RolloutError, StorageError, as_flag
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import say
from mpi_rollout.storage.values import merged_wrong
from mpi_rollout.text import counted, system_words

if TYPE_CHECKING:
    from mpi_rollout.collect.collector import Collector


@dataclass
class TeamEnd(RunEnd):
    """Ends the part of a run that one team collects; see `RunEnd`."""

    team: RankTeam
    leaders: Leaders

    def complete(self, collector: "Collector") -> int:
        figures = self._close(collector, complete=True)
        return self._settle(Outcome(0, figures.num_steps, figures))

    def fail(self, error: RolloutError) -> int:
        is_first = not self.leaders.is_to_end()
        self._kept(error)
        stack = error.stack if isinstance(error, RankError | PolicyError) else ""
        is_stopped = isinstance(error, Interrupted)
        said, is_resumable = error.shown(as_flag), self.state.is_continuable
        kinds = is_stopped, is_resumable, is_first
        return self._settle(Outcome(error.exit_code, self.state.num_safe, None, said, stack, *kinds))

    def _settle(self, outcome: Outcome) -> int:
        """Wait for all teams, and end the run as they have ended; return the exit code.  **Collective** of leaders."""

        def look() -> Outcome | None:
            """Look after the other teams; a stop after this team's end is for them."""
            try:
                self.monitor.look_after_others(self.leaders)
            except Interrupted as error:
                return Outcome(error.exit_code, outcome.num_safe, None, error.shown(as_flag), is_stopped=True)
            return None

        outcomes, code = self.leaders.settle(outcome, look), 0
        if outcomes is not None:
            self.monitor.progress.close()
            failed = [each for each in outcomes if each.code]
            code = self._tell_all(outcomes, failed + self.leaders.stops) if failed else self._complete_set(outcomes)
        return self.leaders.agree_on(code)

    def _tell_all(self, outcomes: list[Outcome], failed: list[Outcome]) -> int:
        """Say what has failed first: other teams may have been stopped for it."""
        cause = min(failed, key=lambda outcome: (outcome.is_stopped, not outcome.is_first_to_end))
        num_safe, part = min(outcome.num_safe for outcome in outcomes), self.team.whole.path + ".part"
        kept = f"; all shards have {counted(num_safe, 'step')}, in {part}" if num_safe else ""
        if kept and cause.is_stopped and cause.is_resumable:
            kept += "; the same command continues"
        say(cause.stack)
        say(f"mpi_rollout: {cause.message}{kept}\n")
        assert self.team.shard_set is not None
        self.team.shard_set.drop_if_empty(part, num_safe)
        is_resumable = all(outcome.is_resumable for outcome in outcomes)
        state = "interrupted" if cause.is_stopped else "failed"
        self._tell_status(state, cause.code, cause.message, num_safe, is_resumable)
        if self.config.json:
            self._print(json.dumps({"error": cause.message + kept, "exit_code": cause.code}))
        return cause.code

    def _complete_set(self, outcomes: list[Outcome]) -> int:
        """Make one data set of the shards; print the summary."""
        from mpi_rollout.storage.schema import INTERVAL, Ending
        from mpi_rollout.storage.set_end import complete_manifest

        assert self.team.shard_set is not None
        figures, path = merged(self.team, outcomes), self.team.whole.path
        ending = Ending(utc_now(), 0, 0.0, [], [], complete=True)
        if figures is not None:
            totals = figures.env_steps, figures.seconds, figures.ranks, figures.limit
            ending = Ending(utc_now(), *totals, complete=True, advice=figures.advice)
        intervals, words = np.array(self.leaders.intervals, INTERVAL), ""
        try:
            complete_manifest(path, ending, intervals, self.team.shard_set.replaces)
        except RolloutError as error:
            code, words = error.exit_code, error.shown(as_flag)
        except (OSError, RuntimeError) as error:  # HDF5 reports a full disk as RuntimeError.
            way_out = "make room or move what is there, then the same command continues"
            code, words = StorageError.exit_code, f"cannot write {path}: {system_words(error)}; {way_out}"
        if words:
            return self._tell_all(outcomes, [Outcome(code, outcomes[0].num_safe, None, words)])
        self._tell_status("complete", 0, "", outcomes[0].num_safe)
        if figures is not None:
            self._print_summary(replace(figures, file=path))
        return 0


def merged(team: RankTeam, outcomes: list[Outcome]) -> RunFigures | None:
    """Return the figures of the run from those of its teams, of which some may have had nothing to do.

    They are sums, and the seconds of a team on average.
    """
    told = [outcome.figures for outcome in outcomes if outcome.figures is not None]
    if not told:
        return None
    first, num_teams = told[0], len(told)
    times = [pair for each in told for pair in zip(each.ranks, each.step_s, strict=True)]
    times.sort(key=lambda pair: pair[0]["rank"])
    starts = [each.envs.start for each, outcome in zip(team.teams, outcomes, strict=True) if outcome.figures]
    rates = zip(*(each.limit for each in told), strict=False)
    return replace(
        first,
        num_envs=team.whole.num_envs,
        env_steps=sum(each.env_steps for each in told),
        seconds=max(each.seconds for each in told),
        phases={name: sum(each.phases[name] for each in told) / num_teams for name in first.phases},
        ranks=[rank for rank, _ in times],
        step_s=[step_s for _, step_s in times],
        slowest_s=sum(each.slowest_s for each in told) / num_teams,
        mean_s=sum(each.mean_s for each in told) / num_teams,
        limit=[(sum(run for run, _ in part), sum(bare for _, bare in part)) for part in rates],
        restarts={env: num for each in told for env, num in each.restarts.items()},
        num_waits=sum(each.num_waits for each in told),
        num_steps_before=min(each.num_steps_before for each in told),
        fragment_length=max(each.fragment_length for each in told),
        catch_up_s=max(each.catch_up_s for each in told),
        wrong_values=merged_wrong([(start, each.wrong_values) for start, each in zip(starts, told, strict=True)]),
    )
