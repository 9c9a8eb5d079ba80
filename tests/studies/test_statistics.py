"""The statistics of scaling studies give back what made-up data were made of, and refuse what carries no answer."""

import math

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


def test_no_samples_have_no_median():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_a_ratio_is_of_medians_and_its_interval_covers_both_spreads():
    found = statistics.ratio(Interval(8, 6, 9, 0.9375), Interval(2, 1, 3, 0.96875))
    assert found == Interval(4, 2, 9, 0.90625)
    assert found.scaled(0.5) == Interval(2, 1, 4.5, 0.90625)
    assert statistics.ratio(Interval(1, 1, 1, 0.0), Interval(1, 1, 1, 0.5)).coverage == 0


def amdahls(fraction: float, overhead: float = 1.0) -> dict[int, float]:
    return {p: 1 / (overhead * (fraction + (1 - fraction) / p)) for p in RANKS}


@pytest.mark.parametrize(("fraction", "overhead"), [(0.0, 1.25), (0.05, 1.0), (0.5, 1.25)])
def test_the_laws_of_amdahl_and_gustafson_give_back_their_fraction(fraction, overhead):
    amdahl = statistics.amdahl(amdahls(fraction, overhead))
    gustafson = statistics.gustafson({p: (fraction + (1 - fraction) * p) / overhead for p in RANKS})
    assert sum(amdahl.coefficients) == pytest.approx(overhead)
    for found in (amdahl, gustafson):
        assert found.serial_fraction == pytest.approx(fraction, abs=1e-9)
        assert found.worst_error < 1e-9 and abs(found.held_out_error) < 1e-9


def test_karp_and_flatts_fraction_is_amdahls_at_every_point_but_that_of_one_rank():
    for num_ranks in RANKS[1:]:
        assert statistics.karp_flatt(amdahls(0.1)[num_ranks], num_ranks) == pytest.approx(0.1)
    assert math.isnan(statistics.karp_flatt(0.97, 1))


def exchanges(root_s: float, alpha_s: float, beta_s: float) -> tuple[dict[int, float], dict[int, float]]:
    nbytes = {p: (p - 1) * 4096.0 for p in RANKS}
    return {p: root_s + alpha_s * math.ceil(math.log2(p)) + beta_s * nbytes[p] for p in RANKS}, nbytes


def test_alpha_and_beta_of_made_up_exchanges_are_found_again():
    found = statistics.alpha_beta(*exchanges(8e-6, 1.5e-6, 2e-10))
    assert found.coefficients == pytest.approx((8e-6, 1.5e-6, 2e-10))
    assert abs(found.held_out_error) < 1e-6


def test_the_check_shows_a_model_that_does_not_reach_to_the_largest_number_of_ranks():
    seconds, nbytes = exchanges(8e-6, 1.5e-6, 2e-10)
    seconds[RANKS[-1]] *= 2
    found = statistics.alpha_beta(seconds, nbytes)
    assert found.held_out_error == pytest.approx(-0.5)
    assert found.worst_error < 0.5  # The fit itself bends to the point.


def test_too_few_points_are_refused():
    few = dict(list(amdahls(0.1).items())[:4])
    for law in (statistics.amdahl, statistics.gustafson):
        with pytest.raises(NoFit, match=r"^4 points, 5 are needed$"):
            law(few)
    with pytest.raises(NoFit, match=r"^1 point, 5 are needed$"):
        statistics.alpha_beta({2: 1e-6}, {2: 100.0})


def test_points_that_do_not_tell_alpha_from_beta_are_refused():
    seconds, _ = exchanges(8e-6, 1.5e-6, 2e-10)
    with pytest.raises(NoFit, match="do not tell the parts of the model apart"):
        statistics.alpha_beta(seconds, {p: 100.0 * math.ceil(math.log2(p)) for p in RANKS})
    with pytest.raises(NoFit, match="do not tell the parts of the model apart"):
        statistics.alpha_beta(seconds, dict.fromkeys(RANKS, 0.0))


def test_a_time_that_is_no_time_is_refused():
    seconds, nbytes = exchanges(8e-6, 1.5e-6, 2e-10)
    with pytest.raises(NoFit, match="not positive"):
        statistics.alpha_beta(seconds | {1: -1e-6}, nbytes)
