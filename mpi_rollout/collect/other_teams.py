"""What the root of a team tells the others, and what the first one tells of all; see `leaders`."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np

from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.watcher import Progress, Watcher, Watchers
from mpi_rollout.errors import Interrupted

LOOK_EVERY_S = 0.5  # Where this rank has nothing else to do.


class OtherTeams(Watchers):
    """Watchers who are told how far all teams are.  They are on the first leader.

    `stops` may end the run while this team waits for the others.
    """

    def __init__(self, members: Sequence[Watcher], leaders: Leaders, stops: Watcher, state: RunState):
        super().__init__(members)
        self._leaders, self._stops, self._state = leaders, stops, state
        self._began_at = self._looked_at = 0.0
        self._is_paused = False  # The time of a pause is no interval of this team's steps.

    def check(self) -> None:
        """Raise Interrupted if another team has failed."""
        if self._leaders.is_to_end():
            raise Interrupted(f"{self._state.stop_place}: stopped, because another rank ends the run")
        super().check()

    def on_look(self, progress: Progress) -> None:
        self._leaders.tell(
            progress.num_steps,
            progress.num_committed,
            progress.env_steps,
            progress.env_steps_per_s,
            self._state.worst_commit_s,
        )
        now_s = perf_counter()
        self._began_at = self._began_at or now_s
        if progress.interval_s or self._is_paused or not self._looked_at:
            self._looked_at, self._is_paused = now_s, False
        self._tell(progress)

    def on_pause(self, progress: Progress) -> None:
        self._is_paused = True
        super().on_pause(progress)

    def look_after(self) -> None:
        """Look at the other teams, which go on when this one has ended; the first leader does it for all.

        Interrupted if they are to stop.
        """
        self._stops.check()
        now_s = perf_counter()
        if not self._leaders.is_first or now_s < self._looked_at + LOOK_EVERY_S:
            return
        self._began_at = self._began_at or now_s  # Else this team had nothing to do.
        interval_s = now_s - self._looked_at if self._looked_at else 0.0
        self._looked_at = now_s
        self._tell(Progress(0, 0, seconds=now_s - self._began_at, interval_s=interval_s))

    def _tell(self, progress: Progress) -> None:
        """Tell how far all teams are, and note their throughput once each has told its own."""
        if not self._leaders.is_first:
            return
        (least, most), (env_steps, rate) = self._leaders.steps, self._leaders.throughput
        if progress.interval_s and not np.isnan(rate):
            self._leaders.intervals.append((progress.seconds, env_steps, rate))
        super().on_look(
            replace(
                progress,
                num_steps=least,
                most_steps=most,
                env_steps=env_steps,
                num_committed=self._leaders.num_committed,
                env_steps_per_s=rate,
            )
        )
