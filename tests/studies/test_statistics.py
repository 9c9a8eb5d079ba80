"""The statistics of scaling studies give back what made-up data were made of, and refuse what carries no answer."""

import numpy as np
import pytest

from mpi_rollout.studies import statistics
from mpi_rollout.studies.statistics import Interval, NoFit, median_interval

RANKS = (1, 2, 4, 8, 16, 32)


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


def amdahls(fraction: float, overhead: float = 1.0) -> dict[int, float]:
    return {p: 1 / (overhead * (fraction + (1 - fraction) / p)) for p in RANKS}


@pytest.mark.parametrize(("fraction", "overhead"), [(0.0, 1.25), (0.05, 1.0), (0.5, 1.25)])
def test_the_laws_of_amdahl_and_gustafson_give_back_their_fraction(fraction, overhead):
    amdahl = statistics.fit("strong", amdahls(fraction, overhead))
    gustafson = statistics.fit("weak", {p: (fraction + (1 - fraction) * p) / overhead for p in RANKS})
    assert amdahl.serial + amdahl.parallel == pytest.approx(overhead)
    for found in (amdahl, gustafson):
        assert found.serial_fraction == pytest.approx(fraction, abs=1e-9)
        assert found.worst_error < 1e-9 and abs(found.held_out_error) < 1e-9


def test_the_check_shows_a_model_that_does_not_reach_to_the_largest_number_of_ranks():
    found = statistics.fit("weak", {p: 1.0 * p for p in RANKS[:-1]} | {RANKS[-1]: RANKS[-1] / 2})
    assert found.held_out_error == pytest.approx(1.0)
    assert found.worst_error < 1.0  # The fit itself bends to the point.


def test_too_few_points_are_refused():
    few = dict(list(amdahls(0.1).items())[:4])
    for kind in ("strong", "weak"):
        with pytest.raises(NoFit, match=r"^4 points, 5 are needed$"):
            statistics.fit(kind, few)
    with pytest.raises(NoFit, match=r"^1 point, 5 are needed$"):
        statistics.fit("strong", {2: 1.0})
