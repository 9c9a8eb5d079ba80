"""A turn of a system: its stepper resets, warms up, and steps for a window.

Another Python may run this, with an old Gymnasium: it needs NumPy alone.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

SEED = 0  # Of the first reset of each turn: env i has SEED + i.
WARM_UP_SHARE, LEAST_WARM_UP = 0.1, 1  # Of the window, and in sweeps: caches and branch predictors are others' now.

Sweep = TypeVar("Sweep")
Ends = tuple[np.ndarray, np.ndarray]  # Terminations and truncations.


class Turn(NamedTuple):
    """What one turn of a system gave: seconds of the reset of all envs, then env steps, seconds and sweeps."""

    reset_s: float
    env_steps: int
    seconds: float
    sweeps: int


class Stepper(Protocol[Sweep]):
    """One system's envs."""

    def reset(self) -> None:
        """Begin new episodes in all envs."""

    def sweep(self) -> Sweep:
        """Step once; return what `count` needs to know of it."""
        ...

    def count(self, sweeps: Sequence[Sweep]) -> int:
        """Count the env steps of all sweeps since the last call or `reset`, in their order."""
        ...

    def close(self) -> None:
        """End what was started."""


def take_turn(stepper: Stepper[Sweep], window_s: float) -> Turn:
    """Reset, warm up, and step for `window_s` seconds, the last sweep whole."""
    start = perf_counter()
    stepper.reset()
    reset_s = perf_counter() - start
    stepper.count(_sweeps_of(stepper, WARM_UP_SHARE * window_s, LEAST_WARM_UP)[0])
    sweeps, seconds = _sweeps_of(stepper, window_s, 1)
    env_steps = stepper.count(sweeps)
    while env_steps == 0:  # Nothing but resets in so short a window.
        more, more_s = _sweeps_of(stepper, 0.0, 1)
        sweeps, seconds, env_steps = sweeps + more, seconds + more_s, env_steps + stepper.count(more)
    return Turn(reset_s, env_steps, seconds, len(sweeps))


def _sweeps_of(stepper: Stepper[Sweep], window_s: float, least: int) -> tuple[list[Sweep], float]:
    sweeps: list[Sweep] = []
    sweep, start = stepper.sweep, perf_counter()
    while True:
        sweeps.append(sweep())
        elapsed = perf_counter() - start
        if elapsed >= window_s and len(sweeps) >= least:
            return sweeps, elapsed


class NextStepRows:
    """Counts env steps where a row after an episode's end only resets."""

    def __init__(self) -> None:
        self._ended: np.ndarray | None = None

    def begin(self) -> None:
        """All envs are reset."""
        self._ended = None

    def count(self, sweeps: Sequence[Ends]) -> int:
        """Count those of rows of all envs; the last row of the last call, if any, comes before them."""
        ended = np.logical_or.reduce(np.array(sweeps, np.bool_), axis=1)
        num_resets = np.count_nonzero(ended[:-1]) + (0 if self._ended is None else np.count_nonzero(self._ended))
        self._ended = ended[-1]
        return ended.size - int(num_resets)


class RunningSystem(Protocol):
    """A system that is set up."""

    def take_turn(self, window_s: float) -> Turn:
        """Reset, and step for a window."""
        ...

    def close(self) -> None:
        """End what was started."""


class BatchSystem:
    """A system that steps whole batches, so that nothing is under way when its window ends."""

    def __init__(self, stepper: Stepper):
        self.stepper = stepper

    def take_turn(self, window_s: float) -> Turn:
        return take_turn(self.stepper, window_s)

    def close(self) -> None:
        self.stepper.close()


class DrainedStepper(Stepper[Sweep], Protocol[Sweep]):
    """A stepper with envs under way after a sweep."""

    def drain(self) -> None:
        """Receive all that was sent."""


class PartsSystem:
    """A system whose envs are under way when its window ends: they come back before its turn does."""

    def __init__(self, stepper: DrainedStepper):
        self.stepper, self.close = stepper, stepper.close

    def take_turn(self, window_s: float) -> Turn:
        turn = take_turn(self.stepper, window_s)
        self.stepper.drain()
        return turn


class RecordingSystem:
    """A system that stores an episode when it is over, which may not happen within a window.

    So its turn ends with a reset, which stores the running episode, as a turn of this program ends with a commit.
    """

    def __init__(self, stepper: Stepper):
        self.stepper, self.close = stepper, stepper.close

    def take_turn(self, window_s: float) -> Turn:
        turn, start = take_turn(self.stepper, window_s), perf_counter()
        self.stepper.reset()
        return turn._replace(seconds=turn.seconds + perf_counter() - start)
