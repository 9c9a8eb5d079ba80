"""Shapes of chunks and blocks."""

import random

import numpy as np
import pytest

from mpi_rollout.storage.schema import CHUNK_NBYTES, SPAN_NBYTES, chunk_shape, rows_per_block


@pytest.mark.parametrize(
    ("shape", "dtype", "chunk"),
    [
        ((1024, 64, 4), "f4", (1024, 4, 4)),
        ((4096, 64, 4), "f8", (4096, 1, 4)),
        ((64, 64, 348), "f8", (32, 1, 348)),  # HumanoidStandup-v5
        ((2, 64, 210, 160, 3), "u1", (1, 1, 210, 160, 3)),  # Breakout-v5
        ((16, 2, 210, 160, 3), "u1", (16, 1, 210, 160, 3)),
        ((4, 2, 2000, 2000), "u1", (1, 1, 2000, 2000)),
        ((8, 10, 1000), "f4", (8, 4, 1000)),
        ((8, 3), "?", (8, 3)),
        ((8, 3, 0), "f4", (8, 3, 1)),
        ((1, 5), "i8", (1, 5)),
    ],
)
def test_chunks_are_of_many_steps_and_few_envs(shape: tuple, dtype: str, chunk: tuple):
    assert chunk_shape(np.broadcast_to(np.zeros((), dtype), shape)) == chunk


def test_chunks_divide_blocks_are_not_small_and_fit_into_a_readers_cache():
    draws = random.Random(0)
    for _ in range(200):
        shape = (2 ** draws.randrange(12), draws.randint(1, 300), *draws.choices(range(1, 100), k=2))
        rows, envs, *rest = chunk_shape(np.broadcast_to(np.zeros((), "u1"), shape))
        assert shape[0] % rows == 0 and rest == list(shape[2:])
        assert rows == 1 or rows * np.prod(shape[1:]) <= SPAN_NBYTES
        assert rows * envs * np.prod(rest) >= CHUNK_NBYTES or envs == shape[1]
        assert envs == 1 or rows * (envs - 1) / 2 * np.prod(rest) < CHUNK_NBYTES


@pytest.mark.parametrize(("row_nbytes", "num_steps"), [(1, 10), (100, 1), (10**4, 10**6), (3 * 10**6, 999), (10**9, 5)])
def test_blocks_are_a_power_of_two_of_steps_and_bounded_in_bytes(row_nbytes: int, num_steps: int):
    rows = rows_per_block(row_nbytes, num_steps)
    assert rows & (rows - 1) == 0
    assert rows == 1 or rows * row_nbytes <= 2**24
    assert rows < 2 * num_steps
