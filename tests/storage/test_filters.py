"""Filters: checksums are HDF5's; which columns those of hdf5plugin pack, and what one gets without the package."""

import re
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job
from written_data import LARGE_ROWS, NUM_STEPS, Feed, ending

import mpi_rollout
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage import filters
from mpi_rollout.storage.filters import CHECKSUM_NBYTES, WORDS_PER_ROW, fletcher32
from mpi_rollout.storage.output import check_place
from mpi_rollout.text import pip_install

ROW_NBYTES = 2 * WORDS_PER_ROW
SIZES = [1, 2, 3, 4, 5, 7, 719, 720, 721, 722, 4095, 65535, 131070, 131072, 10**6 + 1]
SIZES += [rows * ROW_NBYTES + more for rows in (1, 2, 17) for more in (-2, -1, 0, 1, 2, 3)]


def checksum_of_hdf5(folder: Path, data: np.ndarray) -> bytes:
    """What HDF5's own filter puts behind a chunk."""
    with h5py.File(folder / "one.h5", "w") as file:
        dataset = file.create_dataset("data", data=data, chunks=data.shape, fletcher32=True)
        file.flush()
        return dataset.id.read_direct_chunk((0,) * data.ndim)[1][-CHECKSUM_NBYTES:]


def test_the_checksum_is_that_of_hdf5(tmp_path: Path):
    draws = np.random.default_rng(0)
    arrays = [draws.normal(size=(3, 1, 5, 7)).astype(dtype) for dtype in ("?", "i1", "<f4", ">f8", "<i8", "<c16")]
    for size in SIZES:
        arrays += [np.zeros(size, np.uint8), np.full(size, 255, np.uint8), draws.integers(0, 256, size, np.uint8)]
        arrays += [np.eye(1, size, place, dtype=np.uint8)[0] for place in (0, size - 1)]
    for data in arrays:
        assert fletcher32(data) == checksum_of_hdf5(tmp_path, data), (data.shape, data.dtype)


@pytest.mark.parametrize("multiple", [1, 2, 65536])
def test_sums_that_are_multiples_of_the_modulus_are_not_zero(tmp_path: Path, multiple: int):
    data = np.zeros(131072, np.uint16)
    data[:multiple] = 65535
    assert fletcher32(data) == checksum_of_hdf5(tmp_path, data)
    data[: multiple + 1] = [*[65535] * (multiple - 1), 1, 65534]
    assert fletcher32(data) == checksum_of_hdf5(tmp_path, data)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A complete file of images that are compressed with lz4."""
    pytest.importorskip("hdf5plugin")
    feed = Feed(LARGE_ROWS, compression="lz4", bits=1)
    writer = feed.writer(tmp_path / "run.h5", 8)
    for _ in feed.fill(writer, NUM_STEPS, {NUM_STEPS}):
        pass
    return Path(writer.finish(ending(NUM_STEPS)))


def without_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)


def test_who_reads_without_the_plugin_is_told_what_to_install(packed: Path, monkeypatch: pytest.MonkeyPatch):
    without_plugin(monkeypatch)
    words = r"run\.h5: trajectories/observations is compressed: lz4 needs .*: " + re.escape(
        pip_install("[compression]")
    )
    with pytest.raises(DataError, match=words):
        mpi_rollout.open(packed)


def test_a_run_without_the_plugin_ends_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    without_plugin(monkeypatch)
    config = RolloutConfig(env="CartPole-v1", compression="zstd", out=str(tmp_path / "run.h5"))
    with pytest.raises(UsageError, match=r"^compression=zstd needs the package hdf5plugin"):
        check_place(config)


def test_images_are_packed_and_small_columns_are_not():
    for compression in filters.PLUGINS:
        assert filters.pays(compression, np.dtype("u1"), (84, 84, 4))
        assert not filters.pays(compression, np.dtype("f8"), ())
        assert not filters.pays(compression, np.dtype("f4"), (1000,))
    assert filters.pays("gzip", np.dtype("f8"), ()) and not filters.pays("none", np.dtype("u1"), (84, 84, 4))


def test_another_filter_than_the_configuration_says_is_refused(packed: Path):
    with h5py.File(packed, "r+") as file:
        data = file["trajectories/observations"][...]
        del file["trajectories/observations"]
        file["trajectories"].create_dataset(
            "observations", data=data, maxshape=(None, *data.shape[1:]), chunks=(8, 1, 300, 400),
            fletcher32=True, compression="lzf",
        )  # fmt: skip
    with pytest.raises(DataError, match="observations should have the compression lz4, got filter 32000"):
        mpi_rollout.open(packed)


PACK = """
import h5py, numpy as np
from mpi_rollout.storage import filters

for name in filters.PLUGINS:
    with h5py.File(f"{name}.h5", "w") as file:
        data = np.zeros((8, 4096), np.uint8)
        options = filters.filter_options(name, data.dtype, 1)
        dataset = file.create_dataset("x", data=data, chunks=data.shape, **options)
        values = dataset.id.get_create_plist().get_filter(0)[2]
        packed = filters.apply(filters.FILTER_CODES[name], values, data.reshape(-1))
        assert len(packed) < 1000
        assert not filters.apply(filters.FILTER_CODES[name], values, packed, filters.REVERSE).any()
"""


@pytest.mark.full_start
def test_a_plugin_path_of_the_users_own_changes_nothing(job: Job, monkeypatch: pytest.MonkeyPatch):
    hdf5plugin = pytest.importorskip("hdf5plugin")
    monkeypatch.setenv("HDF5_PLUGIN_PATH", hdf5plugin.PLUGIN_PATH)
    assert job.script(None, PACK).code == 0


@pytest.mark.parametrize("name", filters.PLUGINS)
def test_bytes_that_no_filter_has_packed_are_an_error(tmp_path: Path, name: str):
    pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "one.h5", "w") as file:
        options = filters.filter_options(name, np.dtype("u1"), 1)
        dataset = file.create_dataset("x", (1, 1000), "u1", chunks=(1, 1000), **options)
        with pytest.raises(zlib.error, match=f"the filter {name} refuses it"):
            filters.Filters(dataset).decode(np.full(100, 255, np.uint8), 0)
