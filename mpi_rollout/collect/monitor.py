"""What the root knows of a run under way: how far it is, whether it must stop, which ranks it goes on without."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_rollout.collect.collector import Collector, Tally
from mpi_rollout.collect.leaders import COMMIT_S, Leaders
from mpi_rollout.collect.progress import Done, make_progress
from mpi_rollout.collect.scalars import Scalars
from mpi_rollout.config import RolloutConfig
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import Interrupted, RankLost, as_flag
from mpi_rollout.exchange.world import ROOT, rank_and_host
from mpi_rollout.process.clock import PHASES, Deadline, Spent
from mpi_rollout.process.console import name_of_stop
from mpi_rollout.storage.status import Status
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi_rollout.storage.verification import LaterCheck
    from mpi_rollout.storage.writer import Writer  # Imports h5py, which is for the root alone.

RankReport = dict[str, Any]  # What a rank says of itself at the end: its host, envs and seconds by phase.
LOOK_EVERY_S = 0.5  # Where this rank has nothing else to do.
STATUS_EVERY_S = 5.0  # The status is written again; on a parallel file system that may take a while.


@dataclass
class RunState:
    """Where a run is: what there is of it, and what it has taken; see `report.RunFigures`."""

    past: Past | None  # Where an earlier start of the run came to.
    past_checks: "Sequence[LaterCheck]" = ()  # Of what it wrote, under way.
    is_continuable: bool = True  # Its envs can be brought back to where they were.
    writer: "Writer | None" = None  # It and the collector are there when the envs are where the run begins.
    collector: Collector | None = None
    seconds: float = 0.0
    catch_up_s: float = 0.0
    env_steps_before: int = 0  # Of earlier starts.
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    limit: list[tuple[float, float]] = field(default_factory=list)
    restarts: Counter[int] = field(default_factory=Counter)
    rank: int = ROOT  # Of this process in the job.

    @property
    def file(self) -> "Writer":
        """The writer, once the run is under way."""
        assert self.writer is not None
        return self.writer

    @property
    def num_past(self) -> int:
        """Steps that earlier starts of the run have taken."""
        return 0 if self.past is None else self.past.num_steps

    @property
    def num_safe(self) -> int:
        """Steps that are committed, by this start of the run or an earlier one."""
        return max(self.num_past, 0 if self.writer is None else self.writer.num_committed)

    @property
    def place(self) -> str:
        """Where the run is: steps are counted from 0, as in the file, so this is the first one that it lacks."""
        num_steps = self.collector.num_steps if self.collector else self.num_safe
        return f"{rank_and_host(self.rank)}, step {num_steps}"


class Monitor:
    """Looks after a run between two steps.

    It notes the throughput since the last look in the file, and tells how far the run is.
    """

    def __init__(self, config: RolloutConfig, driver: Driver, state: RunState, status: Status, leaders: Leaders):
        self._leaders, self._rate, self._first_env = leaders, np.nan, config.first_env
        self.progress = make_progress(config.progress, config.num_steps)
        how = config.in_lockstep, config.asks_on_ranks
        self._spent = Spent(*how)
        self._scalars = Scalars(config.log_dir, Spent(*how)) if config.log_dir else None
        self._driver, self._state, self._status = driver, state, status
        self._deadline = Deadline(config.max_walltime)
        self._looked_at, self._seen_env_steps = 0.0, 0
        self._line_env_steps, self._line_s = 0, 0.0  # Env steps up to the last line, seconds since then.
        self._told, self._status_at = 0, 0.0  # What the status says, and when it is to be written again.
        self._began_at = self._tell_at = self._checked_at = self._worst_pause_s = 0.0

    def check_stop(self) -> None:
        """Raise Interrupted if the run is to stop or its time is nearly over, DataError if its past is damaged."""
        self.check_own_stop()
        if self._leaders.is_to_end():
            raise Interrupted(f"{self._place}: stopped, because another rank ends the run")
        if self._leaders.is_first:  # It looks at the time for all.
            self._check_time()

    def _check_time(self) -> None:
        own_commit_s = 0.0 if self._state.writer is None else self._state.writer.worst_commit_s
        worst_commit_s = max(own_commit_s, self._leaders.states[:, COMMIT_S].max())
        now_s = perf_counter()
        if self._checked_at:
            self._worst_pause_s = max(self._worst_pause_s, now_s - self._checked_at)
        self._checked_at = now_s
        if self._deadline.is_near(worst_commit_s, self._worst_pause_s):
            raise Interrupted(f"{self._place}: stopped for {self._deadline.reason}")

    def check_own_stop(self) -> None:
        """Do of `check_stop` what takes no MPI, and no time: any thread may call it."""
        for check in self._state.past_checks:
            check.poll()
        self._check_signal()

    def _check_signal(self) -> None:
        if self._driver.stop_signal:
            raise Interrupted(f"{self._place}: stopped by {name_of_stop(self._driver.stop_signal)}")

    @property
    def _place(self) -> str:
        """Where the run stops; a stop ends all teams, which are at other steps."""
        return self._state.place if self._leaders.is_alone else rank_and_host(self._state.rank)

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        """Note that an env was restarted, before the sink has that step; -1 is the first reset."""
        self._state.restarts[self._first_env + env_index] += 1
        self._state.file.add_fault(env_index, step, message)

    def on_look(self, collector: Collector) -> None:
        """Look at the run, now and then and at the end of `Collector.advance`; may raise to end it."""
        self.check_stop()
        self._state.file.values.say_warnings(as_flag)
        now_s, env_steps = self._driver.clock.now, collector.tally.env_steps
        if self._looked_at and env_steps > self._seen_env_steps:
            self._rate = (env_steps - self._seen_env_steps) / (now_s - self._looked_at)
        figures = collector.num_steps, self._state.num_safe, env_steps, self._rate, self._state.file.worst_commit_s
        self._leaders.tell(*figures)
        self._tell_status(now_s)
        if not self._looked_at:
            if not self._began_at:
                self._begin(now_s)
                self._note_scalars(collector, 0.0)
                self._losses(collector.tally, 0.0)
        elif env_steps == self._seen_env_steps:
            return
        else:
            self._note_interval(collector, now_s)
        self._looked_at, self._seen_env_steps = now_s, env_steps

    def look_after_others(self) -> None:
        """Look at the other teams of the run, which go on when this one has ended; the first leader does it for all.

        Interrupted if they are to stop.
        """
        self._check_signal()
        if not self._leaders.is_first:
            return
        self._check_time()
        if (now_s := perf_counter()) >= self._looked_at + LOOK_EVERY_S:
            if not self._began_at:  # This team had nothing to do.
                self._begin(now_s)
            self._line_s += now_s - self._looked_at if self._looked_at else 0.0
            self._looked_at = now_s
            self._tell_status(now_s)
            self._tell(now_s)

    def _begin(self, now_s: float) -> None:
        self._began_at, self._tell_at = now_s, now_s + self.progress.every_s

    def _tell_status(self, now_s: float) -> None:
        num_committed = int(self._leaders.states[:, 1].min())
        if now_s >= self._status_at or (num_committed and not self._told):
            self._status.tell("running", num_steps=num_committed)
            self._told, self._status_at = num_committed, now_s + STATUS_EVERY_S

    def _note_interval(self, collector: Collector, now_s: float) -> None:
        """Store the throughput since the last look, and show it when it is time for it."""
        self._state.file.add_interval(now_s - self._began_at, collector.tally.env_steps, self._rate)
        self._line_s += (seconds := now_s - self._looked_at)
        self._tell(now_s, collector)
        self._note_scalars(collector, seconds)

    def _tell(self, now_s: float, collector: Collector | None = None) -> None:
        """Show how far the run is when it is time for it; of several teams, note the throughput of all."""
        leaders = self._leaders
        (least, most), (env_steps, rate) = leaders.steps, leaders.throughput
        if not leaders.is_alone:
            if np.isnan(rate):
                return
            leaders.intervals.append((now_s - self._began_at, env_steps, rate))
        if now_s >= self._tell_at:
            losses = {} if collector is None else self._losses(collector.tally, self._line_s)
            rate = (env_steps - self._line_env_steps) / self._line_s if self._line_s else 0.0
            goal = None if collector is None else collector.goal
            self.progress.tell(Done(least, env_steps, rate, losses, goal, most))
            self._line_env_steps, self._line_s = env_steps, 0.0
            self._tell_at = now_s + self.progress.every_s

    def _losses(self, tally: Tally, seconds: float) -> dict[str, float]:
        return self._spent.losses(seconds, tally.mean_s, tally.slowest_s, self._driver.clock.seconds)

    def _note_scalars(self, collector: Collector, seconds: float) -> None:
        if self._scalars is not None:
            self._scalars.note(collector, seconds, self._state.env_steps_before, self._state.file.ended)

    def end_scalars(self, collector: Collector) -> None:
        """Write the last point of the curves: the file has all episodes now."""
        if self._scalars is not None:
            self._scalars.is_ending = True
            self._note_scalars(collector, self._driver.clock.now - self._looked_at if self._looked_at else 0.0)
            self._scalars.close()

    def pause(self) -> None:
        """Leave out the time until the next look: rates are of the run alone."""
        self._looked_at = 0.0


@dataclass(frozen=True)
class LostRank:
    """A rank that was lost with its envs; `step` is the first one that these did not take, counted from 0."""

    rank: int
    host: str
    first_env: int
    num_envs: int
    step: int

    def __str__(self) -> str:
        last = self.first_env + self.num_envs - 1
        envs = f"env {last}" if self.num_envs == 1 else f"envs {self.first_env} to {last}"
        return f"rank {self.rank} ({self.host}), {envs}, at step {self.step:,}"


class LostRanks:
    """The root's list of ranks that are gone, `all` in the order in which they were lost; `show` tells the user.

    `hosts` has those of the driver's ranks, by their numbers in the job.
    """

    def __init__(self, config: RolloutConfig, driver: Driver, hosts: Mapping[int, str], show: Callable[[str], None]):
        self.all: list[LostRank] = []
        self._config, self._driver, self._hosts, self._show = config, driver, hosts, show

    def note(self, ranks: list[int], state: RunState) -> None:
        """Go on without ranks that are gone, from the step under way on; RankLost if none is left that steps envs."""
        collector, num_envs = state.collector, self._config.num_envs
        assert collector is not None
        new = []
        for rank in ranks:
            envs = collector.lose(rank)
            new.append(LostRank(rank, self._hosts[rank], envs.start, len(envs), collector.num_steps))
        self.all += new
        if self._driver.exchanges.num_stepping == 0:
            raise RankLost(f"lost {new[-1]}; no rank is left that steps envs")
        num_left = num_envs - sum(loss.num_envs for loss in self.all)
        for loss in new:
            self._show(f"mpi_rollout: lost {loss}; going on with {num_left} of {counted(num_envs, 'env')}\n")
            for index in range(loss.first_env, loss.first_env + loss.num_envs):
                state.file.add_fault(index, loss.step, f"lost rank {loss.rank} ({loss.host})")

    def reports(self) -> list[RankReport]:
        """Ask the ranks for their reports at the end, in rank order; of those that are gone, return what is known."""
        reports = None
        while reports is None:
            try:
                told = self._driver.call_ranks(self._driver.worker.control.report)
                reports = {report["rank"]: report for report in told}
            except RankLost as error:  # It has given all its steps.
                self._show(f"mpi_rollout: {error}\n")
        known = {"seconds": dict.fromkeys(PHASES, 0.0), "fault": None}
        envs_of = self._driver.exchanges.division.whole.envs_of
        return [
            reports.get(rank) or {"rank": rank, "host": host, "num_envs": len(envs_of(place)), **known}
            for place, (rank, host) in enumerate(self._hosts.items())
        ]
