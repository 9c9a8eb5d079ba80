"""The statistics of scaling studies, as functions of numbers: no files, no processes, nothing of this program.

Sources: Hoefler and Belli, Scientific Benchmarking of Parallel Computing Systems (SC 2015), for intervals and what to
state; the POP project (pop-coe.eu) for load balance and communication efficiency; Amdahl (1967), Gustafson (1988),
Karp and Flatt (1990), Hockney (1994) for the models; Extra-P for how many points a model needs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

NEEDED_POINTS = 5  # Extra-P asks for as many before it makes a model.


class NoFit(ValueError):
    """The points do not carry the model that was asked for; the message says why."""


@dataclass(frozen=True)
class Interval:
    """A median and an interval around the true one.

    Parameters
    ----------
    coverage
        The probability with which such intervals hold the true median.
    """

    median: float
    low: float
    high: float
    coverage: float

    def scaled(self, factor: float) -> "Interval":
        return Interval(self.median * factor, self.low * factor, self.high * factor, self.coverage)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median, and the narrowest symmetric pair of order statistics that holds the true one with `confidence`.

    Nothing is assumed of the distribution: each sample is above the true median with probability 1/2, so that fewer
    than k of n are below it with a binomial probability.  Where n samples cannot give that confidence, the interval
    is all of them, and `coverage` says what it is worth: 0.9375 for five samples, 0 for one.

    Raises
    ------
    ValueError
        There are no samples.
    """
    if not len(samples):
        raise ValueError("no samples")
    ordered, num = sorted(samples), len(samples)
    place, coverage, tail = 0, 0.0, 0.0
    for candidate in range((num + 1) // 2):
        tail += math.comb(num, candidate) / 2**num  # At most `candidate` samples are below the true median.
        if candidate == 0 or 1 - 2 * tail >= confidence:
            place, coverage = candidate, max(0.0, 1 - 2 * tail)
    return Interval(float(np.median(ordered)), float(ordered[place]), float(ordered[-1 - place]), coverage)


def ratio(over: Interval, under: Interval) -> Interval:
    """The ratio of two medians: speed-ups are ratios of medians, not medians of ratios.

    Its interval is from low over high to high over low; by Bonferroni it misses no more often than either of the two.
    """
    coverage = max(0.0, over.coverage + under.coverage - 1)
    return Interval(over.median / under.median, over.low / under.high, over.high / under.low, coverage)


def load_balance(useful_s: Sequence[float]) -> float:
    """POP: the mean over ranks of the time in useful work, over that of the busiest rank."""
    return float(np.mean(useful_s) / np.max(useful_s))


def communication_efficiency(useful_s: Sequence[float], seconds: float) -> float:
    """POP: the busiest rank's time in useful work, over the run time.  Times `load_balance`: parallel efficiency."""
    return float(np.max(useful_s) / seconds)


def karp_flatt(speed_up: float, num_ranks: int) -> float:
    """The serial fraction that this speed-up would mean in Amdahl's law.

    Rising with the number of ranks it means overhead that grows, constant a serial part.  Of 1 rank there is none.
    """
    return (1 / speed_up - 1 / num_ranks) / (1 - 1 / num_ranks) if num_ranks > 1 else math.nan


@dataclass(frozen=True)
class Fit:
    """A linear model by least squares of relative errors.

    Parameters
    ----------
    worst_error
        The largest relative error at a point of the fit.
    held_out_error
        The relative error at the largest number of ranks of the same model, fitted without that point.
    """

    coefficients: tuple[float, ...]
    worst_error: float
    held_out_error: float


def fit(columns: np.ndarray, values: np.ndarray) -> Fit:
    """Fit `values` by a sum of columns, (num_points, num_columns); the last row is held out for the check.

    Raises
    ------
    NoFit
        There are too few points, with the last one or without, or they do not tell the columns apart.
    """
    num_points = len(values)
    if num_points < NEEDED_POINTS:
        raise NoFit(f"{num_points} point{'s' * (num_points != 1)}, {NEEDED_POINTS} are needed")
    if (values <= 0).any():
        raise NoFit("a value is not positive")
    coefficients = _solve(columns, values)
    errors = columns @ coefficients / values - 1
    held_out = columns[-1] @ _solve(columns[:-1], values[:-1]) / values[-1] - 1
    return Fit(tuple(coefficients.tolist()), float(np.abs(errors).max()), float(held_out))


def _solve(columns: np.ndarray, values: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    scale = np.abs(columns).max(axis=0)  # Bytes and counts differ by many powers of ten.
    if (scale == 0).any():
        raise NoFit("the points do not tell the parts of the model apart")
    relative = columns / scale / values[:, None]
    coefficients, _, rank, _ = np.linalg.lstsq(relative, np.ones(len(values)) - known / values, rcond=1e-9)
    if rank < columns.shape[1]:
        raise NoFit("the points do not tell the parts of the model apart")
    return coefficients / scale


def non_negative(columns: np.ndarray, values: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    """Fit `values` by a sum of columns, none less than 0 times: the best of all choices of columns that are.

    With as few columns as models have, trying all choices is simple and exact.  Errors are relative to `values`.

    Parameters
    ----------
    known
        A part of the values that is not to be fitted.

    Raises
    ------
    NoFit
        A value is not positive, or the points do not tell the columns apart.
    """
    if (values <= 0).any():
        raise NoFit("a value is not positive")
    _solve(columns, values, known)  # Or it is refused.
    best, found = math.inf, np.zeros(columns.shape[1])
    for size in range(columns.shape[1] + 1):
        for chosen in map(list, combinations(range(columns.shape[1]), size)):
            part = _solve(columns[:, chosen], values, known) if chosen else np.zeros(0)
            error = float(np.square((columns[:, chosen] @ part + known) / values - 1).sum())
            if (part >= 0).all() and error < best:
                best, found = error, np.zeros(columns.shape[1])
                found[chosen] = part
    return found


def amdahl(speed_ups: Mapping[int, float]) -> Fit:
    """Fit serial + parallel / num_ranks to the run times, in units of the base case's: of one size on all ranks.

    Two parts, not one: what this program adds to a bare loop on one rank is not the part that does not scale.
    `serial_fraction` gives Amdahl's.
    """
    ranks, values = _ordered(speed_ups)
    return fit(np.stack([np.ones_like(ranks), 1 / ranks], axis=1), 1 / values)


def gustafson(speed_ups: Mapping[int, float]) -> Fit:
    """Fit serial + parallel * num_ranks to the scaled speed-ups, of a size that grows with the ranks."""
    ranks, values = _ordered(speed_ups)
    return fit(np.stack([np.ones_like(ranks), ranks], axis=1), values)


def serial_fraction(found: Fit) -> float:
    """The serial part's share of one rank's time, of a fit by `amdahl` or `gustafson`."""
    serial, parallel = found.coefficients
    return serial / (serial + parallel)


def alpha_beta(seconds: Mapping[int, float], nbytes: Mapping[int, float]) -> Fit:
    """Fit root + alpha * ceil(log2 num_ranks) + beta * nbytes to the seconds that one exchange takes.

    Parameters
    ----------
    nbytes
        What the root sends and receives in it; of 1 rank 0.

    Returns
    -------
    Fit
        Coefficients: seconds of the root, alpha in seconds per message, beta in seconds per byte.
    """
    ranks, values = _ordered(seconds)
    hops = np.ceil(np.log2(ranks))
    moved = np.array([nbytes[int(each)] for each in ranks], float)
    return fit(np.stack([np.ones_like(ranks), hops, moved], axis=1), values)


def _ordered(values: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    ranks = sorted(values)
    return np.array(ranks, float), np.array([values[each] for each in ranks], float)
