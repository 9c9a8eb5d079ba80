"""Telling how far a run is: a bar, drawn by tqdm, on a terminal, a plain line every 10 s in a log file."""

import math
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from mpi_rollout.collect.watcher import Episodes, Progress, Watcher
from mpi_rollout.process.clock import Spent
from mpi_rollout.process.console import say
from mpi_rollout.process.terminal import Stderr, Terminal, open_terminal
from mpi_rollout.text import counted

LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.5
LEAST_BAR = len(" 34%|##########| ")


class Done(NamedTuple):
    """How far a run is; `losses` are those since the last one.

    All envs have taken `num_steps` steps; of several shards, those of the fastest have taken `most_steps`.
    """

    num_steps: int
    env_steps: int
    env_steps_per_s: float
    losses: Mapping[str, float]
    goal: Episodes | None = None
    most_steps: int = 0

    @property
    def steps(self) -> str:
        """The steps that were taken, in words."""
        return f"{self.num_steps:,}" + f" to {self.most_steps:,}" * (self.most_steps > self.num_steps)

    @property
    def shares(self) -> list[str]:
        """The shares of the time, in words."""
        return [f"{name} {100 * share:z.0f}%" for name, share in self.losses.items()]


class Bar:
    """One line that is written again and again, as long as there is a terminal; plain lines are told `instead` then."""

    every_s = BAR_EVERY_S

    def __init__(self, num_steps: int, terminal: Terminal | Stderr, instead: "Lines"):
        from tqdm import tqdm  # Only where there is a bar.

        self._tqdm, self._terminal, self._instead = tqdm, terminal, instead
        self._total = num_steps
        self._begin: tuple[float, float] | None = None
        self._num_columns = 0  # The width of what is shown.

    def tell(self, done: Done) -> None:
        if self._terminal.is_gone:
            self._instead.tell(done)
            self.every_s = self._instead.every_s
            return
        now, reached = perf_counter(), self._total * share(done.num_steps, self._total, done.goal)
        self._begin = self._begin or (reached, now)
        parts = [
            f"{done.env_steps_per_s:,.0f} env steps/s",
            self._left(reached, now),
            "" if done.goal is None else f"{done.goal.num_ended:,}/{counted(done.goal.num_episodes, 'episode')}",
            f"{done.steps}/{counted(self._total, 'step')}",
            *done.shares,
            counted(done.env_steps, "env step"),
        ]
        self._num_columns = max(self._terminal.columns - len("^C "), 1)  # What is shown stays in one line.
        self._terminal.write("\r" + self._line(reached, parts))

    def _left(self, num_steps: float, now: float) -> str:
        """Estimate the time that is left from the rate since the bar was first shown."""
        first, began_at = self._begin or (num_steps, now)
        if num_steps == first:
            return ""
        seconds = (now - began_at) / (num_steps - first) * (self._total - num_steps)
        return f"{self._tqdm.format_interval(seconds)} left"

    def _line(self, num_steps: float, parts: Sequence[str]) -> str:
        """Return a line with what has room of these parts, the most important first, and a bar in the rest of it."""
        text = fitting(parts, self._num_columns - LEAST_BAR)
        is_ascii = not self._terminal.encoding.lower().startswith("utf")
        form = "{percentage:3.0f}%|{bar}| " + text
        line = self._tqdm.format_meter(
            num_steps, self._total, 0, ncols=self._num_columns, ascii=is_ascii, bar_format=form
        )
        return line[: self._num_columns].ljust(self._num_columns)

    def close(self) -> None:
        if self._num_columns:
            self._terminal.write(self._terminal.clear)
            self._num_columns = 0


def share(num_steps: int, total: int, goal: Episodes | None) -> float:
    """Return which part of a run is done: of its steps or of its episodes, whichever will end it as it seems."""
    return max(num_steps / total, 0.0 if goal is None else min(goal.num_ended / goal.num_episodes, 1.0))


def fitting(parts: Sequence[str], num_columns: int) -> str:
    """Return as many of the first parts as have room in a line."""
    text = ""
    for part in filter(None, parts):
        longer = f"{text}, {part}" if text else part
        if len(longer) > num_columns:
            break
        text = longer
    return text


class Lines:
    """A plain line now and then, for logs; the first after a second, so that one sees that it runs."""

    def __init__(self, num_steps: int, every_s: float = 1.0):
        self._total, self.every_s = num_steps, every_s

    def tell(self, done: Done) -> None:
        self.every_s = LINE_EVERY_S
        steps = f"{done.steps} of {'' if done.goal is None else 'at most '}{counted(self._total, 'step')}"
        parts = [
            f"mpi_rollout: {steps} ({100 * share(done.num_steps, self._total, done.goal):.0f}%)",
            "" if done.goal is None else f"{done.goal.num_ended:,} of {counted(done.goal.num_episodes, 'episode')}",
            counted(done.env_steps, "env step"),
            f"{done.env_steps_per_s:,.0f} env steps/s",
            *done.shares,
        ]
        say(", ".join(filter(None, parts)) + "\n", patience_s=0.0)

    def close(self) -> None:
        pass


def make_progress(kind: str, num_steps: int) -> Bar | Lines:
    """Make what `--progress` names; `auto` is a bar where a terminal shows it, else lines."""
    lines = Lines(num_steps)
    terminal = open_terminal() if kind in ("auto", "bar") else None
    return Bar(num_steps, terminal or Stderr(), lines) if kind == "bar" or terminal else lines


class ProgressLine(Watcher):
    """Shows how far a run is when it is time for it; `spent` says where the time between two lines went."""

    def __init__(self, shown: Bar | Lines, spent: Spent):
        self._shown, self._spent = shown, spent
        self._next_at: float | None = None  # None before the first look.
        self._line_env_steps, self._line_s = 0, 0.0  # Env steps up to the last line, seconds since then.

    def on_look(self, progress: Progress) -> None:
        """Show the rate since the last line, and not that since the last look, of which there are many."""
        if self._next_at is None:
            self._next_at = progress.seconds + self._shown.every_s
            self._losses(progress)
        self._line_s += progress.interval_s
        # Of several teams, the rate is not known before all have told it.
        is_new = progress.interval_s > 0 and not math.isnan(progress.env_steps_per_s)
        if is_new and progress.seconds >= self._next_at:
            self._show(progress)

    def _show(self, progress: Progress) -> None:
        rate = (progress.env_steps - self._line_env_steps) / self._line_s
        self._shown.tell(
            Done(
                progress.num_steps,
                progress.env_steps,
                rate,
                self._losses(progress),
                progress.episodes,
                progress.most_steps,
            )
        )
        self._line_env_steps, self._line_s = progress.env_steps, 0.0
        self._next_at = progress.seconds + self._shown.every_s

    def _losses(self, progress: Progress) -> Mapping[str, float]:
        spent = progress.spent
        if spent is None:
            return {}
        return self._spent.losses(self._line_s, spent.mean_s, spent.slowest_s, spent.phases)

    def on_stop(self, signal: int) -> None:
        """Clear the line: something else will be said, and launchers do not wait long after a signal."""
        self._shown.close()
