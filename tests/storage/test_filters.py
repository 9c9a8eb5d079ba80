"""The checksum of a chunk is HDF5's."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from mpi_rollout.storage.filters import CHECKSUM_NBYTES, WORDS_PER_ROW, Filters, fletcher32

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


def test_what_gzip_hardly_makes_smaller_is_stored_as_it_is(tmp_path: Path):
    """A packed chunk is always shorter than the chunk: HDF5 would put it in the place of what is committed."""
    drawn, is_packed = PATTERNS["random"](1000), []
    with h5py.File(tmp_path / "one.h5", "w") as file:
        options = {"chunks": (1000,), "fletcher32": True, "compression": "gzip"}
        filters = Filters(file.create_dataset("data", (1000,), np.uint8, **options))
    for num_zeros in range(100):
        chunk = np.append(drawn, np.zeros(CHECKSUM_NBYTES, np.uint8))
        chunk[1000 - num_zeros : 1000] = 0
        before = chunk[:1000].copy()
        data, mask = filters.encode(chunk)
        is_packed.append(filters.is_packed(mask))
        assert len(data) < 1000 if is_packed[-1] else data[:-CHECKSUM_NBYTES].tolist() == before.tolist()
        assert filters.has_checksum(mask) and filters.decode(data, mask).tolist() == before.tolist()
    assert not is_packed[0] and is_packed[-1] and is_packed == sorted(is_packed)
