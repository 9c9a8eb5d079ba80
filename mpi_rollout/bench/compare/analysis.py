"""From the samples of a comparison to its figures: medians with intervals, ratios, overheads, who is ahead where."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mpi_rollout.bench import statistics
from mpi_rollout.bench.compare.comparison import BASE, Comparison, Point, Sample, Samples
from mpi_rollout.bench.statistics import Fit, Interval, NoFit, median_interval


@dataclass(frozen=True)
class Cell:
    """What the turns of one system at one point show.

    Parameters
    ----------
    rate
        Env steps per second.
    ratio
        Over the bare loop of the same point; None without one.
    reset_s
        Of a reset of all envs.
    """

    rate: Interval
    ratio: Interval | None
    reset_s: Interval


class Standing(NamedTuple):
    """How this program's fastest way stands beside another system, with some number of envs.

    Parameters
    ----------
    way
        The name of this program's system with the highest median.
    verdict
        "faster" or "slower" where the two intervals are apart; else "not told apart".
    """

    num_envs: int
    way: str
    verdict: str


FASTER, UNTOLD, SLOWER = VERDICTS = ("faster", "not told apart", "slower")


class Analysis:
    """The figures of a comparison, complete or not."""

    def __init__(self, comparison: Comparison, samples: Samples):
        self.comparison, self._samples = comparison, samples

    @cached_property
    def cells(self) -> dict[tuple[Point, str], Cell]:
        """By point and system, where there are results."""
        turns_of: dict[tuple[Point, str], list[Sample]] = {}
        for sample in self._samples.turns:
            if not sample.error:
                turns_of.setdefault((sample.point, sample.system), []).append(sample)
        rates = {key: median_interval([turn.env_steps_per_s for turn in turns]) for key, turns in turns_of.items()}
        cells = {}
        for (point, system), turns in turns_of.items():
            rate, base = rates[point, system], rates.get((point, BASE))
            ratio = statistics.ratio(rate, base) if base else None
            reset_s = median_interval([turn.reset_s for turn in turns])
            cells[point, system] = Cell(rate, ratio, reset_s)
        return cells

    def systems(self, env: str) -> list[str]:
        """Return those with results for an env, in the order of tables."""
        names = {system for point, system in self.cells if point.env == env}
        return [name for name in self.comparison.all_systems if name in names]

    def sizes(self, env: str, systems: Iterable[str]) -> list[int]:
        """Return the numbers of envs at which all of these have results."""
        return [
            num_envs
            for num_envs in self.comparison.sizes
            if all((Point(env, num_envs), system) in self.cells for system in systems)
        ]

    def rate(self, env: str, num_envs: int, system: str) -> float:
        """Return the median env steps per second."""
        return self.cells[Point(env, num_envs), system].rate.median

    def overhead(self, env: str, system: str) -> Fit | NoFit:
        """Fit N t_row + t_os to the seconds that N transitions take; coefficients: t_row, t_os."""
        sizes = self.sizes(env, [system])
        seconds = np.array([num_envs / self.rate(env, num_envs, system) for num_envs in sizes])
        try:
            return statistics.fit(np.stack([np.array(sizes, float), np.ones(len(sizes))], axis=1), seconds)
        except NoFit as error:
            return error

    def env_step_s(self, env: str) -> float | None:
        """Return the seconds of an env step in the bare loop: the median over the numbers of envs."""
        rates = [self.rate(env, num_envs, BASE) for num_envs in self.sizes(env, [BASE])]
        return float(1 / np.median(rates)) if rates else None

    def fastest(self, env: str, num_envs: int, kinds: Sequence[str]) -> list[str]:
        """Return of some kinds the system with the highest median, then those whose intervals reach its own."""
        systems, here = self.comparison.all_systems, Point(env, num_envs)
        rates = {name: cell.rate for (point, name), cell in self.cells.items() if point == here}
        ordered = sorted((name for name in rates if systems[name].kind in kinds), key=lambda name: -rates[name].median)
        return [name for name in ordered if rates[name].high >= rates[ordered[0]].low]

    def ours(self, env: str, num_envs: int, kind: str, form: str = "") -> str | None:
        """Return this program's way to step envs of a kind that has the highest median; None where there is none.

        `form` is that of the envs, see `systems.FORMS`.
        """
        here, systems = Point(env, num_envs), self.comparison.all_systems.items()
        ways = [name for name, system in systems if system.is_ours and (system.kind, system.form) == (kind, form)]
        names = [name for name in ways if (here, name) in self.cells]
        return max(names, key=lambda name: self.cells[here, name].rate.median, default=None)

    def standings(self, env: str, other: str, kind: str = "loop", form: str = "") -> list[Standing]:
        """Compare this program with another system, at all numbers of envs where both have results.

        The highest of several medians is above the median of an equal system more often than not, so that medians
        alone show nothing.
        """
        return [
            Standing(num_envs, way, verdict(self.cells[here, way].rate, self.cells[here, other].rate))
            for num_envs in self.sizes(env, [other])
            if (here := Point(env, num_envs)) and (way := self.ours(env, num_envs, kind, form))
        ]


def verdict(ours: Interval, other: Interval) -> str:
    """Return which of `VERDICTS` two rates allow; a single turn has no interval, so it shows no difference."""
    if not min(ours.coverage, other.coverage):
        return UNTOLD
    if ours.low > other.high:
        return FASTER
    return SLOWER if ours.high < other.low else UNTOLD
