"""Telling how far a run is: a tqdm bar on a terminal, a plain line every 10 s in a log file."""

import os
import shutil
from typing import Any

import numpy as np

from mpi_rollout.console import STDERR, Stderr, say
from mpi_rollout.timing import Clock

LINE_EVERY_S = 10.0
SLOW = 1.5  # Times the median of the ranks, from which on a rank is worth a word.
BAR_EVERY_S = 0.5


def launcher_terminal() -> str | None:
    """`find_terminal`, where the system tells: it is for looks only."""
    try:
        return find_terminal()
    except OSError:
        return "/dev/stderr" if os.isatty(STDERR) else None


def find_terminal() -> str | None:
    """The terminal behind this process's stderr, which under mpirun is a pipe to the launcher; None without one.

    Goes up the parents as long as they are an MPI launcher or its helpers.
    """
    if os.isatty(STDERR):
        return os.ttyname(STDERR)
    pid = os.getppid()
    while _process_name(pid).startswith(("mpirun", "mpiexec", "prterun", "prted", "orterun", "orted", "hydra")):
        try:
            target = os.readlink(f"/proc/{pid}/fd/2")
        except OSError:
            return None
        if target.startswith(("/dev/pts/", "/dev/tty")):
            return target
        pid = _parent(pid)
    return None


def _process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _columns_of(terminal: str) -> int:
    try:
        with open(terminal) as file:
            return os.get_terminal_size(file.fileno()).columns
    except OSError:
        return shutil.get_terminal_size().columns


class Shares:
    """The share of time in envs, exchange, policy and writing, since the last asking."""

    def __init__(self, clock: Clock):
        self._clock, self._before = clock, dict(clock.seconds)

    def take(self) -> str:
        now = dict(self._clock.seconds)
        spent = {phase: now[phase] - self._before[phase] for phase in now}
        self._before = now
        total = sum(spent.values()) - spent["other"] or 1.0  # Other is no part of a step.
        exchange = spent["send"] + spent["gather"] + spent["wait"]
        parts = {"envs": spent["step"], "exchange": exchange, "policy": spent["policy"], "write": spent["write"]}
        return ", ".join(f"{name} {100 * value / total:.0f}%" for name, value in parts.items())


class Slowest:
    """The rank that keeps the others waiting, if one does, since the last asking."""

    def __init__(self):
        self._before: np.ndarray | float = 0.0

    def take(self, step_s: np.ndarray) -> str:
        """Say which one it is.

        Parameters
        ----------
        step_s
            Each rank's seconds in its envs so far; 0 where it has none.
        """
        spent = step_s - self._before
        self._before = step_s.copy()
        median = float(np.median(spent[spent > 0])) if (spent > 0).any() else 0.0
        slowest = int(spent.argmax())
        if median == 0 or spent[slowest] < SLOW * median:
            return ""
        return f", slowest rank {slowest} ({spent[slowest] / median:.1f}x median)"


class Bar:
    """One line that is written again and again."""

    every_s = BAR_EVERY_S

    def __init__(self, num_steps: int, clock: Clock, terminal: str):
        from tqdm import tqdm

        self._shares, self._slowest = Shares(clock), Slowest()
        self._bar = tqdm(
            total=num_steps, unit="step", ncols=_columns_of(terminal), file=Stderr(), leave=False, mininterval=0,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps, {elapsed}<{remaining}{postfix}",
        )  # fmt: skip

    def tell(self, num_steps: int, env_steps: int, env_steps_per_s: float, step_s: np.ndarray) -> None:
        shares = self._shares.take() + self._slowest.take(step_s)
        self._bar.set_postfix_str(f"{env_steps:,} env steps, {env_steps_per_s:,.0f}/s, {shares}", refresh=False)
        self._bar.update(num_steps - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class Lines:
    """A plain line now and then, for logs; the first after a second, so that one sees that it runs."""

    def __init__(self, num_steps: int, clock: Clock):
        self._total, self._shares, self._slowest = num_steps, Shares(clock), Slowest()
        self.every_s = 1.0

    def tell(self, num_steps: int, env_steps: int, env_steps_per_s: float, step_s: np.ndarray) -> None:
        self.every_s = LINE_EVERY_S
        say(
            f"mpi_rollout: {num_steps:,} of {self._total:,} steps ({100 * num_steps / self._total:.0f}%), "
            f"{env_steps:,} env steps, {env_steps_per_s:,.0f} env steps/s, {self._shares.take()}"
            f"{self._slowest.take(step_s)}\n",
            patience_s=0.0,
        )

    def close(self) -> None:
        pass


class Silence:
    """Nothing."""

    every_s = float("inf")

    def tell(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass


def make_progress(kind: str, num_steps: int, clock: Clock) -> Bar | Lines | Silence:
    """Make what `--progress` names; `auto` is a bar where a terminal shows it, else lines."""
    terminal = launcher_terminal() if kind in ("auto", "bar") else None
    if kind == "bar" or terminal:
        return Bar(num_steps, clock, terminal or "")
    return Silence() if kind == "none" else Lines(num_steps, clock)
