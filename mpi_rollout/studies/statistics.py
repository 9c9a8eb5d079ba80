"""The statistics of studies, as functions of numbers.

Source: Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems (SC 2015), for intervals and what to
state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


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


def promise(coverages: dict[str, float]) -> str:
    """Say in words what the ranges of some quantities promise; `coverages` has those of each, in [0, 1]."""
    known = ", ".join(f"{100 * coverage:.0f} % for {name}" for name, coverage in coverages.items() if coverage > 0)
    unknown = " and ".join(name for name, coverage in coverages.items() if coverage <= 0)
    words = [f"the range in brackets holds the true median with a probability of {known}"] * bool(known)
    if unknown:
        words.append(f"so few jobs promise nothing about the range of {unknown}: more --repeats do")
    return "; ".join(words)
