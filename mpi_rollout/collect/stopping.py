"""Watchers that end a run before all of its steps are taken: for a signal, a time limit, or damage in its past."""

from collections.abc import Callable
from time import perf_counter

from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.watcher import End, Watcher
from mpi_rollout.errors import Interrupted
from mpi_rollout.process.clock import Deadline
from mpi_rollout.process.console import name_of_stop, say


class PastChecks(Watcher):
    """Ends a run whose past is found to be damaged, with DataError.  `check` is for any thread."""

    def __init__(self, state: RunState):
        self._checks = state.past_checks

    def check(self) -> None:
        for check in self._checks:
            check.poll()


class StopSignal(Watcher):
    """Ends a run of which some rank was asked to stop, with Interrupted.  `check` is for any thread.

    `signal` returns the signal that came, or 0.
    """

    def __init__(self, signal: Callable[[], int], state: RunState):
        self._signal, self._state = signal, state

    def check(self) -> None:
        if signal := self._signal():
            raise Interrupted(f"{self._state.stop_place}: stopped by {name_of_stop(signal)}")


class TimeLimit(Watcher):
    """Ends a run in time for its last commit, with Interrupted.

    `worst_commit_s` returns the longest that a commit of any part of the run has taken.
    """

    def __init__(self, deadline: Deadline, worst_commit_s: Callable[[], float], state: RunState):
        self._deadline = deadline
        self._worst_commit_s = worst_commit_s
        self._state = state
        self._checked_at = self._worst_pause_s = 0.0

    def check(self) -> None:
        now_s = perf_counter()
        if self._checked_at:
            self._worst_pause_s = max(self._worst_pause_s, now_s - self._checked_at)
        self._checked_at = now_s
        if self._deadline.is_near(self._worst_commit_s(), self._worst_pause_s):
            raise Interrupted(f"{self._state.stop_place}: stopped for {self._deadline.reason}")


class LoadingAnswer(Watcher):
    """Answers a signal at once where the package of a policy is still to be imported: that takes long."""

    def __init__(self, name: str):
        self._name, self._is_due = name, True

    def check(self) -> None:
        """Answer no more: the run has gone on, so the policy is loaded."""
        self._is_due = False

    def on_start(self, num_steps: int) -> None:
        self._is_due = False

    def on_stop(self, signal: int) -> None:
        if signal and self._is_due:
            self._is_due = False
            when = f"ends when {self._name} is loaded, or at once after a second signal"
            say(f"mpi_rollout: stopped by {name_of_stop(signal)}: {when}\n")

    def on_end(self, end: End) -> None:
        self._is_due = False
