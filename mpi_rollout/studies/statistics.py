"""The statistics of studies, as functions of numbers.

Sources: Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems (SC 2015), for intervals and what to
state; Amdahl (1967) and Gustafson (1988) for the models; Extra-P for how many points a model needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpi_rollout.text import counted

CONFIDENCE = 0.95
NEEDED_POINTS = 5  # Extra-P asks for as many before it makes a model.


class NoFit(ValueError):
    """The points do not carry the model that was asked for; the message says why."""


@dataclass(frozen=True)
class Interval:
    """A median, and an interval; `coverage` is the probability with which such intervals hold the true median."""

    median: float
    low: float
    high: float
    coverage: float

    def scaled(self, factor: float) -> "Interval":
        return Interval(self.median * factor, self.low * factor, self.high * factor, self.coverage)

    def shown(self, form: str) -> str:
        """Return it as text; `form` is the format of a number."""
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"


def reaches(intervals: Sequence[Interval]) -> list[list[float]]:
    """Return the lengths of intervals below and above their medians, as error bars are given."""
    return [[rate.median - rate.low for rate in intervals], [rate.high - rate.median for rate in intervals]]


def median_interval(samples: Sequence[float] | np.ndarray) -> Interval:
    """Find the median, and the narrowest symmetric pair of order statistics that holds the true one with `CONFIDENCE`.

    Nothing is assumed of the distribution: the number of samples below the true median is binomial.  Where the samples
    are too few for that confidence, the interval is all of them, and `coverage` says what it is worth: 0.9375 for five
    samples, 0 for one.  (`scipy.stats.quantile_test` has no coverage, and NaN for few.)
    """
    from scipy.special import bdtr  # Not scipy.stats, which takes longer to load than all else.

    ordered, num = np.sort(np.asarray(samples, float)), len(samples)
    below = bdtr(np.arange((num + 1) // 2), num, 0.5)  # P(at most k samples are below the median).
    coverages = np.maximum(0.0, np.round(1 - 2 * below, 15))
    place = max(0, int(np.count_nonzero(coverages >= CONFIDENCE)) - 1)
    low, high = float(ordered[place]), float(ordered[-1 - place])
    return Interval(float(np.median(ordered)), low, high, float(coverages[place]))


def ratio(over: Interval, under: Interval) -> Interval:
    """Return the ratio of two medians: speed-ups are ratios of medians, not medians of ratios.

    Its interval is from low over high to high over low; by Bonferroni it misses no more often than either of the two.
    """
    coverage = max(0.0, over.coverage + under.coverage - 1)
    return Interval(over.median / under.median, over.low / under.high, over.high / under.low, coverage)


@dataclass(frozen=True)
class Fit:
    """A serial and a parallel part, by least squares of relative errors.

    `worst_error` is the largest relative error at a point of the fit; `held_out_error` that at the largest number of
    ranks, of the same model fitted without that point.
    """

    serial: float
    parallel: float
    worst_error: float
    held_out_error: float

    @property
    def serial_fraction(self) -> float:
        """The serial part's share of one rank's time."""
        return self.serial / (self.serial + self.parallel)


def fit(kind: str, speed_ups: Mapping[int, float]) -> Fit:
    """Fit the law of a study of this kind to speed-ups by number of ranks; NoFit if there are too few.

    "strong" is Amdahl's: serial + parallel / num_ranks are the run times, in units of the base case's.  Two parts, not
    one: what this program adds to a bare loop on one rank is not the part that does not scale.  "weak" is Gustafson's:
    serial + parallel * num_ranks are the speed-ups, of a size that grows with the ranks.
    """
    if len(speed_ups) < NEEDED_POINTS:
        raise NoFit(f"{counted(len(speed_ups), 'point')}, {NEEDED_POINTS} are needed")
    x, y = np.array(sorted(speed_ups.items()), float).T
    if kind == "strong":
        x, y = 1 / x, 1 / y
    line = np.polyfit(x, y, 1, w=1 / y)
    errors = np.polyval(line, x) / y - 1
    held_out = np.polyval(np.polyfit(x[:-1], y[:-1], 1, w=1 / y[:-1]), x[-1]) / y[-1] - 1
    return Fit(float(line[1]), float(line[0]), float(np.abs(errors).max()), float(held_out))
