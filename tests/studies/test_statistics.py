"""The statistics of scaling studies are those of binomial tables."""

import numpy as np
import pytest

from mpi_rollout.studies import statistics
from mpi_rollout.studies.statistics import Interval, median_interval


@pytest.mark.parametrize(
    ("num", "place", "coverage"),
    [(1, 0, 0.0), (2, 0, 0.5), (5, 0, 0.9375), (6, 0, 0.96875), (9, 1, 0.9609375), (15, 3, 0.96484375)],
)
def test_the_interval_is_the_pair_of_order_statistics_of_binomial_tables(num, place, coverage):
    """E.g. of 9 samples the 2nd and the 8th: Conover, Practical Nonparametric Statistics, table of the binomial."""
    samples = np.random.default_rng(0).permutation(num).astype(float)
    found = median_interval(samples)
    assert found == Interval((num - 1) / 2, place, num - 1 - place, coverage)


def test_a_ratio_is_of_medians_and_its_interval_covers_both_spreads():
    found = statistics.ratio(Interval(8, 6, 9, 0.9375), Interval(2, 1, 3, 0.96875))
    assert found == Interval(4, 2, 9, 0.90625)
    assert found.scaled(0.5) == Interval(2, 1, 4.5, 0.90625)
    assert statistics.ratio(Interval(1, 1, 1, 0.0), Interval(1, 1, 1, 0.5)).coverage == 0


def test_what_a_range_promises_is_said_and_never_as_nothing_per_cent():
    known = statistics.promise({"env steps/s": 0.9375, "speed-up": 0.875})
    assert known.endswith("with a probability of 94 % for env steps/s, 88 % for speed-up")
    half = statistics.promise({"env steps/s": 0.5, "speed-up": 0.0})
    assert (
        "50 % for env steps/s; so few jobs promise nothing about the range of speed-up" in half and " 0 %" not in half
    )
    assert statistics.promise({"env steps/s": 0.0}).startswith("so few jobs promise nothing")
