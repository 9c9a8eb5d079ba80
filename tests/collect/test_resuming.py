"""What decides whether an env did again what is recorded."""

import numpy as np
import pytest

from mpi_rollout.collect.resuming import rows_differ


@pytest.mark.parametrize("place", [(0, 0, 0), (0, 1, 1), (2, 0, 1), (2, 1, 0)])
def test_a_row_differs_if_one_of_its_bytes_does(place: tuple[int, int, int]):
    first = np.arange(12, dtype=np.int64).reshape(3, 2, 2)
    second = first.copy()
    assert rows_differ(first, second).tolist() == [False] * 3
    second[place] ^= 1 << 40
    assert rows_differ(first, second).tolist() == [row == place[0] for row in range(3)]


def test_nan_is_equal_to_itself_and_zero_is_not_minus_zero():
    first, second = np.array([np.nan, 0.0, 1.0]), np.array([np.nan, -0.0, 1.0])
    assert rows_differ(first, second).tolist() == [False, True, False]
