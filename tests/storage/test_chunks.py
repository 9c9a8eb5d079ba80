"""Chunks: full ones have a checksum, partly filled ones are written in place without, all are sealed at the end."""

import io
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import assert_same_bytes
from written_data import IMAGES, LARGE_ROWS, SMALL, Feed, ending

from mpi_rollout.storage.chunks import ChunkWriter
from mpi_rollout.storage.filters import PLUGINS, Filters, compression_of, filter_options
from mpi_rollout.storage.hdf5_format import LIBVER
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.schema import leaf_datasets
from mpi_rollout.storage.verification import verify


def masks(dataset: h5py.Dataset) -> list[int]:
    """The filter masks of all chunks, in order: 0 is with checksum."""
    return [dataset.id.get_chunk_info(number).filter_mask for number in range(dataset.id.get_num_chunks())]


def rows_of(dataset: h5py.Dataset) -> np.ndarray:
    """All rows, from the chunks' bytes: HDF5 2.0 takes chunks that it has not filtered for filtered ones."""
    rows, envs = dataset.chunks
    found = np.zeros((-(-len(dataset) // rows) * rows, 2 * envs), dataset.dtype)
    for number in range(dataset.id.get_num_chunks()):
        row, env = dataset.id.get_chunk_info(number).chunk_offset
        stored = dataset.id.read_direct_chunk((row, env))[1][: rows * envs * dataset.dtype.itemsize]
        found[row : row + rows, env : env + envs] = np.frombuffer(stored, dataset.dtype).reshape(rows, envs)
    return found[: len(dataset), : dataset.shape[1]]


def offset(dataset: h5py.Dataset, *place: int) -> int:
    return dataset.id.get_chunk_info_by_coord(place).byte_offset


@pytest.fixture
def dataset(tmp_path: Path):
    with h5py.File(tmp_path / "one.h5", "x", libver="latest") as file:
        yield file.create_dataset("data", (0, 3), "i4", maxshape=(None, 3), chunks=(4, 2), fletcher32=True)


ROWS = np.arange(1, 25, dtype="i4").reshape(8, 3)


def test_a_partly_filled_chunk_is_written_in_place_and_a_full_one_elsewhere(dataset: h5py.Dataset):
    dataset.file.swmr_mode = True
    writer = ChunkWriter(dataset)
    seen = []
    for stop in (1, 2, 3, 4, 5):
        writer.write(ROWS, 0, stop)
        dataset.file.flush()
        seen.append((masks(dataset), offset(dataset, 0, 0)))
        assert (rows_of(dataset) == ROWS[:stop]).all()
    offsets = [place for _, place in seen]
    assert [mask for mask, _ in seen] == [[1, 1]] * 3 + [[0, 0], [0, 0, 1, 1]]
    assert offsets[0] == offsets[1] == offsets[2] != offsets[3] == offsets[4]


def test_the_old_chunk_stays_as_it_was_when_the_full_one_is_written(dataset: h5py.Dataset):
    dataset.file.swmr_mode = True
    writer = ChunkWriter(dataset)
    writer.write(ROWS, 0, 3)
    dataset.file.flush()
    place = offset(dataset, 0, 0)
    for more in (4, 8):
        writer.write(ROWS, 0, more)
        dataset.file.flush()
    writer.seal()
    dataset.file.flush()
    with open(dataset.file.filename, "rb") as file:
        old = np.frombuffer(os.pread(file.fileno(), 24, place), "i4").reshape(3, 2)
    assert (old == ROWS[:3, :2]).all()


def test_rows_that_are_written_are_not_written_again(dataset: h5py.Dataset):
    writer = ChunkWriter(dataset)
    writer.write(ROWS, 0, 5)
    writer.write(-ROWS, 0, 4)
    writer.write(-ROWS, 0, 5)
    assert (rows_of(dataset) == ROWS[:5]).all()


def test_a_chunk_with_values_beyond_its_last_row_is_sealed_though_its_rows_are_zeros(tmp_path: Path):
    """A recording knows the last observations of envs that are ahead before their rows count."""
    with h5py.File(tmp_path / "one.h5", "x", libver="latest") as file:
        name, sizes = "trajectories/final_observations", {"maxshape": (None, 3), "chunks": (4, 2), "fletcher32": True}
        writer = ChunkWriter(dataset := file.create_dataset(name, (0, 3), "i4", **sizes))
        writer.write(np.eye(4, 3, k=-2, dtype="i4"), 0, 2)
        assert masks(dataset) == [1]
        writer.seal()
        assert masks(dataset) == [0] and not rows_of(dataset).any()


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_sealing_gives_the_last_chunks_their_checksums_and_zeros_beyond_the_last_row(dataset: h5py.Dataset, stop: int):
    writer = ChunkWriter(dataset)
    writer.write(ROWS, 0, stop)
    for _ in range(2):  # The second time there is nothing to do.
        writer.seal()
        assert set(masks(dataset)) == {0}
        assert (rows_of(dataset) == ROWS[:stop]).all()
    dataset.resize(-(-stop // 4) * 4, axis=0)
    assert (rows_of(dataset)[stop:] == 0).all()


@pytest.mark.parametrize("cuts", [[0, 5], [1, 1, 1, 1, 1], [3, 0, 9], [4], [17]])
def test_a_table_holds_what_was_appended(tmp_path: Path, cuts: list[int]):
    rows = np.arange(40.0)
    with h5py.File(tmp_path / "one.h5", "x", libver="latest") as file:
        dataset = file.create_dataset("data", (0,), "f8", maxshape=(None,), chunks=(4,), fletcher32=True)
        table, start = ChunkWriter(dataset), 0
        for count in cuts:
            table.append(rows[start : start + count])
            start += count
        table.seal()
        assert dataset[...].tolist() == rows[:start].tolist() and set(masks(dataset)) == {0}


@pytest.mark.parametrize(("space", "complete"), [(SMALL, True), (LARGE_ROWS, True), (IMAGES, True)])
def test_at_the_end_of_a_run_every_chunk_has_its_checksum(tmp_path: Path, space: spaces.Space, complete: bool):
    feed = Feed(space)
    writer = feed.writer(tmp_path / "run.h5", 8)
    for _ in feed.fill(writer, 21, {3, 5, 11, 21}):
        pass
    with h5py.File(writer.finish(ending(21, complete))) as file:
        found = {name: masks(each) for name, each in leaf_datasets(file).items()}
    assert {mask for each in found.values() for mask in each} == {0}
    assert found.keys() >= {"episodes", "throughput/ranks", "trajectories/rewards"}


@pytest.mark.parametrize(
    ("space", "packing", "complete"),
    [
        (SMALL, "gzip", True),
        (LARGE_ROWS, "gzip", False),
        (LARGE_ROWS, "lz4", True),
        (LARGE_ROWS, "zstd", False),
        (LARGE_ROWS, "blosc", True),
    ],
    ids=["small", "large", "lz4", "zstd", "blosc"],
)
def test_a_compressed_file_holds_what_went_in_in_fewer_bytes(
    tmp_path: Path, space: spaces.Space, packing: str, complete: bool
):
    """Any reader of HDF5 that has the filter reads it; `verify` and `recover` too."""
    if packing in PLUGINS:
        pytest.importorskip("hdf5plugin")
    sizes = {}
    for compression in ("none", packing):
        feed = Feed(space, compression=compression, bits=3)
        writer = feed.writer(tmp_path / f"{compression}.h5", 8)
        for _ in feed.fill(writer, 21, {3, 5, 11, 21}):
            pass
        path = writer.finish(ending(21, complete))
        found = verify(lambda doing: None, path)
        assert (found["num_steps"], found["complete"]) == (21, complete)
        new = str(tmp_path / f"{compression}.new")
        recover(lambda doing: None, path, new, str(tmp_path / "temporary"))
        assert os.path.getsize(new) < os.path.getsize(path)  # Without the room of chunks that became full later.
        for each in (path, new):
            with h5py.File(each) as file:
                datasets = leaf_datasets(file["trajectories"])
                got = {name: dataset[...] for name, dataset in datasets.items()}
                filters = {name: compression_of(dataset) for name, dataset in datasets.items()}
                assert filters["rewards"] == (compression if compression == "gzip" else "none")
                assert filters["observations" if space is LARGE_ROWS else "rewards"] == compression
                sizes[compression] = sum(dataset.id.get_storage_size() for dataset in datasets.values())
            assert_same_bytes(got, feed.expected(21))
    assert sizes[packing] < 0.6 * sizes["none"]


def test_a_chunk_that_gzip_makes_no_smaller_is_stored_as_it_is(tmp_path: Path):
    """As many bytes as before would make HDF5 write it over the rows that are committed."""
    with h5py.File(tmp_path / "one.h5", "x", libver="latest") as file:
        options = {"maxshape": (None, 64), "chunks": (64, 64), "compression": "gzip", "fletcher32": True}
        dataset = file.create_dataset("data", (0, 64), "u1", **options)
        rows = np.random.default_rng(0).integers(0, 256, (192, 64)).astype("u1")
        rows[128:] = 0
        writer = ChunkWriter(dataset)
        writer.write(rows, 0, 130)
        writer.write(rows, 0, 192)
        infos = [dataset.id.get_chunk_info_by_coord((row, 0)) for row in (0, 64, 128)]
        assert [info.size for info in infos[:2]] == [4096 + 4] * 2 and infos[2].size < 100
        assert [info.filter_mask for info in infos] == [1, 1, 0]
        file.flush()
    with h5py.File(tmp_path / "one.h5") as file:
        assert (file["data"][...] == rows).all()


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """Rows of any dtype and shape, and the shape of chunks of whole rows."""
    dtype = np.dtype(draw(st.sampled_from(["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c16"])))
    shape = draw(st.integers(1, 17)), draw(st.integers(1, 5)), *draw(st.lists(st.integers(1, 5), max_size=2))
    chunks = draw(st.integers(1, 6)), draw(st.integers(1, shape[1])), *shape[2:]
    high = draw(st.sampled_from([1, 2, 256]))  # Zeros alone, few values, any bytes.
    rows = np.random.default_rng(shape).integers(0, high, (*shape, dtype.itemsize), np.uint8)
    return (rows[..., 0] > 0 if dtype.kind == "b" else rows.view(dtype)[..., 0]), chunks


@settings(max_examples=60)
@given(tables(), st.data())
@pytest.mark.parametrize("compression", ["none", "gzip", *PLUGINS])
def test_rows_of_any_dtype_and_shape_are_read_as_they_were_written(
    compression: str, table: tuple[np.ndarray, tuple[int, ...]], data: st.DataObject
):
    """By HDF5 itself and by what decodes chunks here, whatever parts they came in."""
    if compression in PLUGINS:
        pytest.importorskip("hdf5plugin")
    rows, chunks = table
    stops = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=4)))
    options = filter_options(compression, rows.dtype, 1) if compression != "none" else {}
    memory = io.BytesIO()
    with h5py.File(memory, "w", libver=LIBVER) as file:
        sizes = {"maxshape": (None, *rows.shape[1:]), "chunks": chunks, "fletcher32": True}
        dataset = file.create_dataset("data", (0, *rows.shape[1:]), rows.dtype, **sizes, **options)
        writer = ChunkWriter(dataset)
        for stop in (*stops, len(rows)):
            given = rows.copy()
            given.view(np.uint8)[stop:] ^= 1  # What is not complete is not what it will be.
            writer.write(given, 0, stop)
        writer.seal()
    with h5py.File(memory) as file:
        dataset = file["data"]
        assert dataset[...].tobytes() == rows.tobytes()
        filters = Filters(dataset)
        for number in range(dataset.id.get_num_chunks()):
            row, env, *_ = dataset.id.get_chunk_info(number).chunk_offset
            mask, stored = dataset.id.read_direct_chunk((row, env, *(0 for _ in chunks[2:])))
            whole = filters.decode(np.frombuffer(stored, np.uint8), mask).view(rows.dtype).reshape(chunks)
            part = rows[row : row + chunks[0], env : env + chunks[1]]
            assert filters.has_checksum(mask) and whole[: len(part), : part.shape[1]].tobytes() == part.tobytes()
