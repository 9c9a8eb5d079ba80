"""The checksum of a chunk is HDF5's."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from mpi_rollout.storage.filters import CHECKSUM_NBYTES, WORDS_PER_ROW, fletcher32

ROW_NBYTES = 2 * WORDS_PER_ROW
SIZES = [1, 2, 3, 4, 5, 7, 719, 720, 721, 722, 4095, 65535, 131070, 131072, 10**6 + 1]
SIZES += [rows * ROW_NBYTES + more for rows in (1, 2, 17) for more in (-2, -1, 0, 1, 2, 3)]
PATTERNS = {
    "zeros": lambda size: np.zeros(size, np.uint8),
    "ones": lambda size: np.full(size, 255, np.uint8),
    "random": lambda size: np.random.default_rng(size).integers(0, 256, size, np.uint8),
    "last": lambda size: np.eye(1, size, size - 1, dtype=np.uint8)[0],
    "first": lambda size: np.eye(1, size, 0, dtype=np.uint8)[0],
}


def checksum_of_hdf5(folder: Path, data: np.ndarray) -> bytes:
    """What HDF5's own filter puts behind a chunk."""
    with h5py.File(folder / "one.h5", "w") as file:
        dataset = file.create_dataset("data", data=data, chunks=data.shape, fletcher32=True)
        file.flush()
        return dataset.id.read_direct_chunk((0,) * data.ndim)[1][-CHECKSUM_NBYTES:]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("size", SIZES)
def test_the_checksum_is_that_of_hdf5(tmp_path: Path, size: int, pattern: str):
    data = PATTERNS[pattern](size)
    assert fletcher32(data) == checksum_of_hdf5(tmp_path, data)


@pytest.mark.parametrize("multiple", [1, 2, 3, 65536])
def test_sums_that_are_multiples_of_the_modulus_are_not_zero(tmp_path: Path, multiple: int):
    data = np.zeros(131072, np.uint16)
    data[:multiple] = 65535
    assert fletcher32(data) == checksum_of_hdf5(tmp_path, data)
    data[: multiple + 1] = [*[65535] * (multiple - 1), 1, 65534]
    assert fletcher32(data) == checksum_of_hdf5(tmp_path, data)


@pytest.mark.parametrize("dtype", ["?", "i1", "<f4", ">f8", "<i8", "<c16"])
def test_any_dtype_and_shape_will_do(tmp_path: Path, dtype: str):
    data = np.random.default_rng(1).normal(size=(3, 1, 5, 7)).astype(dtype)
    assert fletcher32(data) == checksum_of_hdf5(tmp_path, data)
