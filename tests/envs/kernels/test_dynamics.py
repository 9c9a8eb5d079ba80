import numpy as np
import pytest
from kernel_checks import KNOWN_ANSWERS

from mpi_rollout.envs.kernels.single import key_words, philox

pytestmark = pytest.mark.any_mpi


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_python_integers_give_the_known_answers(counter, key, words):
    assert philox(*counter, *key) == words


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_arrays_give_the_known_answers(counter, key, words):
    arrays = [np.full(3, word) for word in counter]
    assert [array.tolist() for array in philox(*arrays, *key)] == [[word] * 3 for word in words]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_numba_gives_the_known_answers(counter, key, words):
    numba = pytest.importorskip("numba")
    assert numba.njit(philox)(*counter, *key) == words


def test_a_seed_of_64_bits_is_two_words():
    assert key_words(0x0123456789ABCDEF) == (0x89ABCDEF, 0x01234567)
