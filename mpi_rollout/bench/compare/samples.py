"""What a comparison gave, as rows of tables: nothing is summed up over turns here."""

from collections.abc import Iterable
from dataclasses import dataclass

from mpi_rollout.bench.compare.comparison import Point
from mpi_rollout.bench.compare.steppers import Turn


@dataclass(frozen=True)
class Sample:
    """One turn of one system.  Of one that failed `error` says why; it has no more turns at this point.

    Parameters
    ----------
    reset_s
        Of a reset of all envs, before the window.
    env_steps, seconds, sweeps
        Of the window; see `steppers`.
    """

    env: str
    num_envs: int
    system: str
    repeat: int
    started: str
    error: str = ""
    reset_s: float = 0.0
    env_steps: int = 0
    seconds: float = 0.0
    sweeps: int = 0

    @property
    def point(self) -> Point:
        return Point(self.env, self.num_envs)

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds


@dataclass(frozen=True)
class Skip:
    """A system that does not apply at a point, and why."""

    env: str
    num_envs: int
    system: str
    reason: str


@dataclass(frozen=True)
class Samples:
    """All rows of a comparison, in the order in which they came."""

    turns: tuple[Sample, ...] = ()
    skips: tuple[Skip, ...] = ()

    @property
    def failed(self) -> list[Sample]:
        return [sample for sample in self.turns if sample.error]

    def is_done(self, point: Point, system: str, repeat: int) -> bool:
        """Tell whether a turn has been taken, or never will be."""
        return any(
            sample.system == system and sample.point == point and (sample.repeat == repeat or sample.error)
            for sample in self.turns
        )

    def with_turn(self, point: Point, system: str, repeat: int, started: str, turn: Turn) -> "Samples":
        """These and another turn."""
        sample = Sample(*point, system, repeat, started, "", *turn)
        return Samples((*self.turns, sample), self.skips)

    def with_failure(self, point: Point, system: str, repeat: int, started: str, error: str) -> "Samples":
        """These and a turn that failed, or that could not be because the set-up failed."""
        return Samples((*self.turns, Sample(*point, system, repeat, started, error)), self.skips)

    def with_skips(self, skips: Iterable[Skip]) -> "Samples":
        """These, and what does not apply."""
        return Samples(self.turns, tuple(dict.fromkeys((*self.skips, *skips))))
