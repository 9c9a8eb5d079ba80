"""The seam of those who watch a run: what they are told, when, and what they may do.

A run knows its watchers only as a list.  This module knows neither the run nor any of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class Spending:
    """Where the root's seconds went, as sums since the run began."""

    mean_s: float = 0.0  # In lockstep, the seconds of the ranks on average, summed over steps.
    slowest_s: float = 0.0  # The seconds of the slowest rank in each step.
    phases: Mapping[str, float] = field(default_factory=dict)  # The root's seconds by phase.


class Episodes(NamedTuple):
    """How many episodes have ended, in a run that is over when `num_episodes` have."""

    num_ended: int
    num_episodes: int


@dataclass(frozen=True)
class Progress:
    """How far a run is.  Of several parts of a run that go on side by side, see `most_steps`."""

    num_steps: int  # Steps that all envs have taken, earlier starts of the run included.
    env_steps: int  # Transitions of this start: the row after an episode's end is none.
    num_committed: int = 0  # Steps that a reader finds whatever happens.
    seconds: float = 0.0  # Since the first look.
    # Since the last look at which there were new steps; 0 where there are none now, at the first look, and at the first
    # one after a pause.
    interval_s: float = 0.0
    env_steps_per_s: float = np.nan  # In the last interval; NaN before there is one.
    spent: Spending | None = None  # None where the root takes no steps any more, and others still do.
    episodes: Episodes | None = None  # Where the run ends with a number of them.
    most_steps: int = 0  # Those of the part that is furthest; the other figures are sums or of the slowest part.


@dataclass(frozen=True)
class LostRank:
    """A rank that was lost with its envs; `step` is the first one that these did not take, counted from 0."""

    rank: int
    host: str
    first_env: int
    num_envs: int
    step: int

    @property
    def envs(self) -> range:
        """The indices of its envs."""
        return range(self.first_env, self.first_env + self.num_envs)

    def __str__(self) -> str:
        last = self.first_env + self.num_envs - 1
        envs = f"env {last}" if self.num_envs == 1 else f"envs {self.first_env} to {last}"
        return f"rank {self.rank} ({self.host}), {envs}, at step {self.step:,}"


@dataclass(frozen=True)
class End:
    """How a run has ended."""

    state: str  # complete, interrupted or failed.
    exit_code: int
    message: str  # Where the data are, or what has failed.
    num_committed: int  # Steps that a reader finds.
    is_resumable: bool = False  # The same command continues.
    is_foreign: bool = False  # The output may be another run's, which keeps what it says of itself.


class Watcher(Protocol):
    """Is told of a run: of its progress, of what happens in it, and of its end.

    All watchers of a run are in one list.  Each event is told to all of them in the order of that list, before the run
    goes on.  All of it happens on the root, in its main thread, one event after the other.  The order of events is

        on_start+  on_fault*  on_pause  ((check  on_look) | on_fault | on_losses | on_pause)*  on_close?  on_end?

    `check` may come at any time before `on_end`, and `on_stop` at any time at all.  A run that fails may leave out
    everything but its end: a watcher must bear to be told `on_stop`, `on_close` or `on_end` first of all.  Where
    several processes drive parts of a run, each tells watchers of its own; those of one that has closed its file are
    told `check` and `on_look` as long as others go on.

    What a watcher does is part of the run's time, unless it is told a pause: it must be quick, it must not wait for
    others, and it must not read the terminal.  Only `on_pause` and `on_close` may call other ranks.

    `check`, `on_look`, `on_losses` and `on_pause` may raise to end the run: an error of the program says why, and what
    was taken is kept.  The watchers behind it in the list are then not told of that event.  Nothing else may raise; a
    watcher that can no longer do its work says so once, and goes on without.

    A watcher has a method for what it wants to be told.  It inherits all others from here: they do nothing.
    """

    def on_start(self, num_steps: int) -> None:
        """Note that the run resets its envs, or brings them back to where `num_steps` steps have led.

        Called once; where the run goes on after an earlier start, before the envs are brought back and after that.
        """
        return

    def check(self) -> None:
        """Raise to end the run.

        Called before each look; and where no step is taken for long: while envs are brought back, before the file of a
        run is closed.
        """
        return

    def on_pause(self, progress: Progress) -> None:
        """Note that no env is stepped, and all that was taken is committed.

        Called before the first step, between two parts of a run, and after its last part.  The time that it takes is
        no part of the run.
        """
        return

    def on_look(self, progress: Progress) -> None:
        """Note how far the run is.

        Called twice a second, after the steps that all envs have taken were counted, and after the last step of each
        part of the run.  `num_steps`, `env_steps` and `seconds` never get less.
        """
        return

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        """Note that an env failed in a step and was restarted; -1 is the first reset.

        Called before that step is stored.
        """
        return

    def on_losses(self, ranks: Sequence[LostRank]) -> None:
        """Note that ranks are gone, with their envs, before the step under way is stored."""
        return

    def on_stop(self, signal: int) -> None:
        """Note that the run is to stop.

        Called in the handler of a signal, wherever the run is: allocate nothing that lasts, take no lock.  Called also
        with 0 when the run takes no more steps, before anything is said of its end.  It may come several times.
        """
        return

    def on_close(self, progress: Progress) -> None:
        """Note that the file has all steps that were taken.  Called once at most, by a run that fails too."""
        return

    def on_end(self, end: End) -> None:
        """Note how the run has ended.  Called once; where the job is then ended by force, once more: that counts."""
        return


class Watchers(Watcher):
    """A list of watchers, which is a watcher too: it tells its members in their order."""

    def __init__(self, members: Sequence[Watcher]):
        self._members = tuple(members)

    def on_start(self, num_steps: int) -> None:
        for member in self._members:
            member.on_start(num_steps)

    def check(self) -> None:
        for member in self._members:
            member.check()

    def on_pause(self, progress: Progress) -> None:
        for member in self._members:
            member.on_pause(progress)

    def on_look(self, progress: Progress) -> None:
        for member in self._members:
            member.on_look(progress)

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        for member in self._members:
            member.on_fault(env_index, step, message)

    def on_losses(self, ranks: Sequence[LostRank]) -> None:
        for member in self._members:
            member.on_losses(ranks)

    def on_stop(self, signal: int) -> None:
        for member in self._members:
            member.on_stop(signal)

    def on_close(self, progress: Progress) -> None:
        for member in self._members:
            member.on_close(progress)

    def on_end(self, end: End) -> None:
        for member in self._members:
            member.on_end(end)
