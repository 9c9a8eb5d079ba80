"""Who watches a run, in which order: the one place that knows them all.  What is off is not in the list."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from mpi_rollout.collect.file_notes import FileNotes
from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.collect.limit_meter import LimitMeter
from mpi_rollout.collect.lost_ranks import LostRanks
from mpi_rollout.collect.other_teams import OtherTeams
from mpi_rollout.collect.progress import ProgressLine, make_progress
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.run_status import RunStatus
from mpi_rollout.collect.scalars import Scalars
from mpi_rollout.collect.stopping import LoadingAnswer, PastChecks, StopSignal, TimeLimit
from mpi_rollout.collect.team import RankTeam
from mpi_rollout.collect.trace import Trace
from mpi_rollout.collect.watcher import Watcher, Watchers
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import FORMATS
from mpi_rollout.drive.driver import Driver
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.process.clock import Deadline, Spent, has_deadline
from mpi_rollout.process.console import say
from mpi_rollout.storage.status import Status


@dataclass(frozen=True)
class RunWatchers:
    """The watchers of a run, or of a team's part of it, and those of them that are asked for more."""

    all: Watcher
    own_stops: Watcher  # Its `check` takes no MPI and no time, and is for any thread.
    lost_ranks: LostRanks
    other_teams: OtherTeams  # In the list where there are others.


def make_watchers(
    team: RankTeam, leaders: Leaders, driver: Driver, state: RunState, policy: PolicySource, hosts: Mapping[int, str]
) -> RunWatchers:
    """Make the list; `hosts` has those of the driver's ranks, by their numbers in the job."""
    config = team.config
    stop_signal = StopSignal(lambda: driver.stop_signal, state)
    own_stops = Watchers([PastChecks(state), stop_signal] if state.past_checks else [stop_signal])
    time_limit = _time_limit(config, leaders, state)
    lost_ranks = LostRanks(driver, hosts, say)
    shown = _shown(team)
    other_teams = OtherTeams(shown, leaders, Watchers([stop_signal, *time_limit]), state)
    watchers: list[Watcher] = [
        lost_ranks,
        FileNotes(state, config.first_env),
        own_stops,
        *(shown if leaders.is_alone else [other_teams]),
        *time_limit,
    ]
    if package_to_load(policy):
        watchers.append(LoadingAnswer(policy.name))
    if config.log_dir:
        watchers.append(Scalars(config.log_dir, _spent(config), state))
    if config.trace:
        watchers.append(Trace(config.trace, driver, lambda: state.num_steps))
    if config.measure_limit:
        watchers.append(LimitMeter(config.limit_s, driver, state))
    return RunWatchers(Watchers(watchers), own_stops, lost_ranks, other_teams)


def _time_limit(config: RolloutConfig, leaders: Leaders, state: RunState) -> list[Watcher]:
    """Return who looks at the time: the first leader does it for all."""
    if not leaders.is_first or not has_deadline(config.max_walltime):
        return []
    return [TimeLimit(Deadline(config.max_walltime), lambda: max(state.worst_commit_s, leaders.worst_commit_s), state)]


def _shown(team: RankTeam) -> list[Watcher]:
    """Return those who show how far the whole run is, where this rank speaks for it."""
    config, watchers = team.config, list[Watcher]()
    if team.speaks:
        watchers.append(RunStatus(config.path, Status(config.path, config.num_steps, config.num_episodes)))
    if config.progress != "none":
        watchers.append(ProgressLine(make_progress(config.progress, config.num_steps), _spent(config)))
    return watchers


def _spent(config: RolloutConfig) -> Spent:
    return Spent(config.in_lockstep, config.asks_on_ranks)


def package_to_load(policy: PolicySource) -> str:
    """Return the package of a policy that is still to be imported; "" if there is none."""
    form = FORMATS.get(policy.kind)
    return "" if form is None or form.package in sys.modules else form.package
