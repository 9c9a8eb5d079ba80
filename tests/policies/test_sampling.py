"""Draws from given uniforms: exact small cases by hand, and how often each comes."""

import numpy as np
import pytest

from mpi_rollout.policies.sampling import (
    bernoulli,
    categorical,
    gaussian,
    modes,
    multi_categorical,
    normal,
    num_normal_uniforms,
)

LARGEST = np.nextafter(1.0, 0.0)
QUARTERS = np.log([1.0, 2.0, 1.0])  # Probabilities of 1/4, 1/2, 1/4.


@pytest.mark.parametrize(
    ("uniform", "category"),
    [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2), (LARGEST, 2)],
)
def test_a_category_is_where_the_sum_of_probabilities_passes_the_uniform(uniform: float, category: int):
    drawn = categorical(QUARTERS[None], np.array([uniform]))
    assert drawn.tolist() == [category] and drawn.dtype == np.int64


@pytest.mark.parametrize("uniform", [0.0, 0.5, LARGEST])
@pytest.mark.parametrize("shift", [-1e5, 0.0, 1e5])
def test_an_impossible_category_is_never_drawn(uniform: float, shift: float):
    logits = np.array([[-np.inf, shift, -np.inf]])
    assert categorical(logits, np.array([uniform])).tolist() == [1]


@pytest.mark.parametrize("uniform", [0.0, 0.4, 0.6, 1 - 2**-53])
def test_a_certain_category_is_drawn(uniform: float):
    logits = [[0.0, np.inf, 5.0, -np.inf], [np.inf, 3.0, 0.0, np.inf], [1.0, 1.0, 1.0, 1.0]]
    drawn = categorical(np.array(logits), np.full(3, uniform))
    assert drawn.tolist() == [1, 0 if uniform < 0.5 else 3, int(4 * uniform)]


def test_a_row_depends_on_its_own_uniform_only():
    draws = np.random.default_rng(0)
    logits, uniforms = draws.normal(size=(50, 7)).astype(np.float32), draws.random(50)
    whole = categorical(logits, uniforms)
    assert whole.tolist() == [int(categorical(logits[[row]], uniforms[[row]])[0]) for row in range(50)]


def test_categories_come_as_often_as_they_should():
    uniforms = (np.arange(10_000) + 0.5) / 10_000
    drawn = categorical(np.tile(QUARTERS, (10_000, 1)), uniforms)
    assert np.bincount(drawn).tolist() == [2500, 5000, 2500]


def test_each_component_has_its_own_categories_and_uniform():
    logits = np.concatenate([QUARTERS, np.log([9.0, 1.0])])[None]
    assert multi_categorical(logits, [3, 2], np.array([[0.5, 0.95]])).tolist() == [[1, 1]]
    assert multi_categorical(logits, [3, 2], np.array([[0.1, 0.85]])).tolist() == [[0, 0]]
    assert modes(logits, [3, 2]).tolist() == [[1, 0]]


def test_the_first_of_equals_is_the_mode():
    assert modes(np.zeros((2, 5)), [3, 2]).tolist() == [[0, 0], [0, 0]]


def test_a_bit_is_set_with_the_probability_that_its_logit_says():
    logits = np.full((1, 4), np.log(3.0))  # A probability of 3/4.
    assert bernoulli(logits, np.array([[0.0, 0.74, 0.76, LARGEST]])).tolist() == [[True, True, False, False]]
    assert bernoulli(np.array([[-1e6, 1e6]]), np.array([[0.0, LARGEST]])).tolist() == [[False, True]]


def test_two_uniforms_give_two_normal_numbers():
    half = -np.expm1(-0.5)  # For which the radius is 1.
    first, second = normal(np.array([[half, 0.0], [half, 0.25]]))
    assert np.allclose(first, [1, 0], atol=1e-15) and np.allclose(second, [0, 1], atol=1e-15)
    assert np.isfinite(normal(np.array([[LARGEST, LARGEST], [0.0, 0.0]]))).all()
    assert np.abs(normal(np.array([[LARGEST, 0.0]]))).max() < 8.6


def test_normal_numbers_have_the_moments_of_a_normal_distribution():
    drawn = normal(np.random.default_rng(0).random((50_000, 4)))
    assert np.allclose(drawn.mean(axis=0), 0, atol=0.02) and np.allclose(np.cov(drawn.T), np.eye(4), atol=0.02)
    assert abs((drawn**4).mean() - 3) < 0.05 and abs((np.abs(drawn) < 1).mean() - 0.6827) < 0.005


@pytest.mark.parametrize("num_components", [1, 2, 3])
def test_a_gaussian_has_its_mean_and_std(num_components: int):
    mean, std = np.full((40_000, num_components), 5.0, np.float32), np.full(num_components, 0.1)
    uniforms = np.random.default_rng(1).random((40_000, num_normal_uniforms(num_components)))
    drawn = gaussian(mean, std, uniforms)
    assert drawn.shape == mean.shape and drawn.dtype == np.float64
    assert np.allclose(drawn.mean(axis=0), 5, atol=0.003) and np.allclose(drawn.std(axis=0), 0.1, atol=0.003)
