"""Shapes of chunks and blocks; how much room a file takes is told, and refused where there is less."""

import random

import numpy as np
import pytest

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import StorageError
from mpi_rollout.process import host
from mpi_rollout.storage import ownership
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
    assert chunk_shape(shape[0], shape[1:], np.dtype(dtype)) == chunk


def test_chunks_divide_blocks_are_not_small_and_fit_into_a_readers_cache():
    draws = random.Random(0)
    for _ in range(200):
        shape = (2 ** draws.randrange(12), draws.randint(1, 300), *draws.choices(range(1, 100), k=2))
        rows, envs, *rest = chunk_shape(shape[0], shape[1:], np.dtype("u1"))
        assert shape[0] % rows == 0 and rest == list(shape[2:])
        assert rows == 1 or rows * np.prod(shape[1:]) <= SPAN_NBYTES
        assert rows * envs * np.prod(rest) >= CHUNK_NBYTES or envs == shape[1]
        assert envs == 1 or rows * (envs - 1) / 2 * np.prod(rest) < CHUNK_NBYTES


@pytest.mark.parametrize(("row_nbytes", "num_steps"), [(1, 10), (100, 1), (10**4, 10**6), (3 * 10**6, 999), (10**7, 9)])
def test_blocks_are_a_power_of_two_of_steps_and_bounded_in_bytes(row_nbytes: int, num_steps: int):
    rows = rows_per_block(row_nbytes, num_steps)
    assert rows & (rows - 1) == 0
    assert rows == 1 or rows * row_nbytes <= (2**26 if rows <= 8 else 2**24)  # A few images make a fragment.
    assert rows >= min(8, num_steps, 2**26 // row_nbytes) // 2
    assert rows < 2 * num_steps


def config(out: object, **options: object) -> RolloutConfig:
    return RolloutConfig(env="CartPole-v1", num_envs=10, num_steps=1000, out=str(out), **options)


@pytest.mark.parametrize(
    "row_nbytes, old, options, free, told",
    [
        (10_000, (), {}, 10**9, ""),
        (1_000_000, (), {}, 2 * 10**9, "about 1.0 GB in {out} (2.0 GB free there)"),
        (1_000_000, (), {}, 10**9 - 1, None),
        (1_000_000, (6 * 10**8,), {}, 4 * 10**8, "about 1.0 GB in {out} (400.0 MB free there)"),
        (1_000_000, (6 * 10**8,), {}, 3 * 10**8, None),
        (1_000_000, (6 * 10**8, 6 * 10**8), {}, 7 * 10**8, "about 1.0 GB in {out} (700.0 MB free there)"),
        (1_000_000, (6 * 10**8, 6 * 10**8), {}, 5 * 10**8, None),  # The copy has all of it before the old one goes.
        (1_000_000, (), {"compression": "gzip"}, 10, "at most 1.0 GB in {out} (0.0 MB free there)"),
        (1_000_000, (), {"trajectories": False}, 10, ""),
    ],
)  # fmt: skip
def test_a_file_is_told_and_refused_by_its_size(tmp_path, monkeypatch, row_nbytes, old, options, free, told):
    monkeypatch.delenv(host.ANY_SIZE, raising=False)
    monkeypatch.setattr(ownership.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": free}))
    out = tmp_path / "run.h5"
    if told is not None:
        said = told and "10 envs x 1,000 steps take " + told.format(out=out)
        assert ownership.check_free_space(config(out, **options), row_nbytes, *old) == said
        return
    with pytest.raises(StorageError, match=r"take about 1\.0 GB in .* free; use fewer steps or envs, another --out, "):
        ownership.check_free_space(config(out, **options), row_nbytes, *old)
    monkeypatch.setenv(host.ANY_SIZE, "1")
    assert ownership.check_free_space(config(out, **options), row_nbytes, *old)
