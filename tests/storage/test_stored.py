"""Chunks and their list: what HDF5's checksum does not see is found, and what its index has lost is recovered."""

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job, Start, assert_same_bytes
from written_data import LARGE_ROWS, NUM_STEPS, Feed, damage, ending, quiet, relist, written

import mpi_rollout
from mpi_rollout.errors import DataError
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.schema import FORMAT_VERSION, padded
from mpi_rollout.storage.untrusted import open_unmarked
from mpi_rollout.storage.verification import verify

NAMES = "trajectories/observations/x", "trajectories/actions", "trajectories/terminations", "episodes"


def in_low_bits(folder: Path, compression: str, complete: bool = True, num_steps: int = NUM_STEPS) -> Path:
    """A file whose bytes are mostly zeros."""
    feed = Feed(LARGE_ROWS, compression=compression, bits=1)
    writer = feed.writer(folder / "run.h5", 8)
    for _ in feed.fill(writer, num_steps, {3, 11, 19, num_steps}):
        pass
    return Path(writer.finish(ending(num_steps, complete)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("state", "kind"), [("complete", "zeros"), ("running", "words")])
def test_damage_that_leaves_fletcher32_as_it_was_is_found(tmp_path: Path, state: str, name: str, kind: str):
    path = written(tmp_path, state)
    before = path.read_bytes()
    damage(path, name, kind)
    if path.read_bytes() == before:  # There are no zeros in it.
        assert kind == "words" or name.endswith("terminations")
        return
    with pytest.raises(DataError, match=f"{name}, rows 0 to .*: the checksum does not fit"):
        verify(quiet, str(path))
    if name == "episodes":  # They follow from the columns.
        recover(quiet, str(path), str(tmp_path / "new.h5"), str(tmp_path / "temporary"))
        return
    with pytest.raises(DataError, match="the checksum does not fit"):
        recover(quiet, str(path), str(tmp_path / "new.h5"), str(tmp_path / "temporary"))


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
def test_a_compressed_chunk_of_zeros_is_found(tmp_path: Path, compression: str):
    if compression == "lz4":
        pytest.importorskip("hdf5plugin")
    path = in_low_bits(tmp_path, compression)
    verify(quiet, str(path))
    damage(path, "trajectories/observations", "zeros", 2)
    with pytest.raises(DataError, match=r"trajectories/observations, rows .*: the checksum does not fit"):
        verify(quiet, str(path))


def test_who_reads_a_damaged_column_is_told(tmp_path: Path):
    path = written(tmp_path, "complete")
    damage(path, "trajectories/rewards", "zeros", 1)
    with mpi_rollout.open(path) as data:
        assert data.rewards[:8].shape == (8, 3)  # The chunk before.
        readings = {
            "a slice": lambda: data.rewards[7:9],
            "a step": lambda: data.rewards[-10],
            "some steps": lambda: data.rewards[[3, 12]],
            "an env": lambda: data.rewards[:, 1],
            "all": lambda: np.asarray(data.rewards),
            "episodes": lambda: [episode.rewards for episode in data.iter_episodes()],
            "transitions": lambda: data.sample_transitions(500, 0),
        }
        for reading, read in readings.items():
            with pytest.raises(DataError, match=r"rewards, rows 8 to 15: the checksum does not fit"):
                read()
                pytest.fail(reading)


def test_an_export_copies_no_damage(job: Job):
    path = written(job.folder, "complete")
    damage(path, "trajectories/actions", "zeros", 1)
    result = job(None, "export", "d4rl", str(path), "new.hdf5")
    assert result.code == 65 and "trajectories/actions, rows 8 to 15: the checksum does not fit" in result.err
    assert not (job.folder / "new.hdf5").exists()


def test_a_file_of_another_version_is_refused_with_the_way_out(job: Job):
    path = written(job.folder, "complete")
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = FORMAT_VERSION - 1
    words = f"has format version {FORMAT_VERSION - 1}, this program reads {FORMAT_VERSION}; read it with the version"
    for result in job.series([Start([command, path]) for command in ("verify", "inspect", "recover")]):
        assert result.code == 65 and words in result.err
    with pytest.raises(DataError, match=words):
        mpi_rollout.open(path)


def zero(rows: np.ndarray) -> None:
    rows[len(rows) // 2 :] = np.zeros((), rows.dtype)


def lengthen(rows: np.ndarray) -> None:
    rows["length"][rows["terminated"]] += 1


@pytest.mark.parametrize(("state", "change"), [("complete", zero), ("ended", lengthen)])
def test_episodes_that_cannot_be_are_refused_by_every_reader(
    job: Job, state: str, change: Callable[[np.ndarray], None]
):
    """Also in files whose checksums fit."""
    (job.folder / "whole").mkdir()
    path = written(job.folder, state)
    with h5py.File(path, "r+") as file:
        rows = file["episodes"][...]
        change(rows)
        file["episodes"][...] = rows
    relist(path)
    with pytest.raises(DataError, match="cannot be an episode of 21 steps"):
        mpi_rollout.open(path)
    commands = ["inspect", path], ["verify", path], ["export", "d4rl", path, "new.hdf5"]
    for result in job.series([Start(command) for command in commands]):
        assert result.code == 65 and "cannot be an episode of 21 steps" in result.err
    recover(quiet, str(path), str(job.folder / "new.h5"), str(job.folder / "temporary"))  # They follow from the rest.
    with h5py.File(written(job.folder / "whole", "complete")) as whole, h5py.File(job.folder / "new.h5") as new:
        assert new["episodes"][...].tolist() == whole["episodes"][...].tolist()


@pytest.mark.parametrize(
    ("state", "name", "column"),
    [("complete", "chunks", "crc32"), ("ended", "commits", "num_steps"), ("complete", "commits", "num_chunks")],
)
def test_a_changed_list_is_found(tmp_path: Path, state: str, name: str, column: str):
    path = written(tmp_path, state)
    with h5py.File(path, "r+") as file:
        rows = file[name][...]
        rows[column][1] += 2**20
        file[name][...] = rows
    with pytest.raises(DataError, match="its list of chunks is not what was written: the digest does not fit"):
        verify(quiet, str(path))


@pytest.mark.parametrize(("name", "num_rows"), [("chunks", 1), ("commits", 1), ("chunks", 4), ("commits", 2)])
def test_steps_before_the_damage_of_a_list_are_recovered(tmp_path: Path, name: str, num_rows: int):
    """The run has committed its 21 steps twice: when they were taken, and at its end."""
    path, out = in_low_bits(tmp_path, "gzip", complete=False), tmp_path / "new.h5"
    with h5py.File(path, "r+") as file:
        file[name][-num_rows:] = np.zeros((), file[name].dtype)
    with pytest.raises(DataError, match=r"its list of chunks (has no commit|is not what was written)"):
        verify(quiet, str(path))
    most = 21 if num_rows == 1 else 19
    if most == 19:
        with pytest.raises(DataError, match="no commit of 21 steps; recover the first 19 with --num-steps 19"):
            recover(quiet, str(path), str(out), f"{out}.new")
    report = recover(quiet, str(path), str(out), f"{out}.new", most)
    assert report["num_steps"] == most
    with h5py.File(out) as file:
        expected = Feed(LARGE_ROWS, bits=1).expected(NUM_STEPS)
        assert_same_bytes({"a": file["trajectories/actions"][...]}, {"a": expected["actions"][:most]})


def test_a_list_of_another_file_is_found(tmp_path: Path):
    paths = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        writer = Feed(seed=seed).writer(tmp_path / str(seed) / "run.h5", 8)
        for _ in Feed(seed=seed).fill(writer, NUM_STEPS, {NUM_STEPS}):
            pass
        paths.append(writer.finish(ending(NUM_STEPS)))
    with h5py.File(paths[0]) as source, h5py.File(paths[1], "r+") as file:
        for name in ("chunks", "commits"):
            file[name].resize(len(source[name]), axis=0)
            file[name][...] = source[name][...]
    with pytest.raises(DataError, match="the digest does not fit"):
        verify(quiet, paths[1])


def test_a_chunk_that_is_lost_is_missed_before_anything_is_read(tmp_path: Path):
    path = written(tmp_path, "complete")
    with h5py.File(path, "r+") as file:
        old = file["trajectories/rewards"]
        options = {"chunks": old.chunks, "maxshape": old.maxshape, "fletcher32": True}
        rows = old[8:]
        del file["trajectories/rewards"]
        new = file.create_dataset("trajectories/rewards", old.shape if old else (NUM_STEPS, 3), "f8", **options)
        new[8:] = rows
        new.attrs["not_finite"] = np.array([0, -1, -1])
    relist(path)
    with pytest.raises(DataError, match="trajectories/rewards, rows 0 to 7: there is no such chunk"):
        mpi_rollout.open(path)


def test_a_file_that_claims_more_rows_than_it_has_is_refused_at_once(tmp_path: Path):
    path = in_low_bits(tmp_path, "gzip")
    with h5py.File(path, "r+") as file:
        file["trajectories"].attrs.modify("num_steps", np.int64(10**6))
        for name in ("rewards", "terminations", "truncations", "actions", "observations"):
            file["trajectories"][name].resize(10**6 + (name == "observations"), axis=0)
    with pytest.raises(DataError, match="its list of chunks has no commit of 1,000,000 steps"):
        mpi_rollout.open(path)


@pytest.mark.parametrize("kind", ["groups", "nested"])
def test_objects_that_do_not_belong_to_a_file_are_refused_at_the_first_one(tmp_path: Path, kind: str):
    path, told = written(tmp_path, "complete"), []
    with h5py.File(path, "r+") as file:
        for number in range(300):
            file.create_group(f"trajectories/{'x/' * number}more{number}" if kind == "nested" else f"more{number}")
    with pytest.raises(DataError, match="does not belong to it"):
        verify(told.append, str(path))
    assert len(told) < 100


def test_what_hdf5_has_lost_the_way_to_is_recovered(tmp_path: Path):
    """Each index of chunks in turn is made unreadable; only that of the list itself is needed."""
    path = in_low_bits(tmp_path, "gzip", complete=False)
    original = path.read_bytes()
    outcomes = []
    for found in re.finditer(b"EA[HID]B", original):
        path.write_bytes(original[: found.start()] + b"EA\0\0" + original[found.end() :])
        new = tmp_path / f"{found.start()}.h5"
        try:
            report = recover(quiet, str(path), str(new), str(tmp_path / "temporary"))
        except DataError as error:
            outcomes.append(str(error).partition(": ")[2][:20])
            continue
        assert report["num_steps"] == NUM_STEPS
        with h5py.File(new) as file:
            data = {name: file["trajectories"][name][...] for name in ("observations", "rewards", "actions")}
        expected = Feed(LARGE_ROWS, bits=1).expected(NUM_STEPS)
        assert_same_bytes(data, {name: expected[name] for name in data})
        outcomes.append("all")
    assert outcomes.count("all") >= len(outcomes) - 4 > 4, outcomes


def as_killed_before_its_last_commits(path: Path, num_steps: int) -> None:
    """Take back what a file says of later commits: HDF5's index then has newer chunks than are listed."""
    with h5py.File(path, "r+") as file:
        commits = file["commits"][...]
        kept = commits[commits["num_steps"] <= num_steps]
        assert kept["num_steps"][-1] == num_steps
        file["commits"].resize(len(kept), axis=0)
        file["chunks"].resize(int(kept["num_chunks"][-1]), axis=0)
        file["trajectories"].attrs.modify("num_steps", np.int64(num_steps))
        file.attrs.modify("finished", padded("finished", ""))


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_chunk_that_is_newer_than_the_last_commit_has_its_rows(tmp_path: Path, compression: str):
    path, out = in_low_bits(tmp_path, compression), tmp_path / "new.h5"
    as_killed_before_its_last_commits(path, 19)
    assert verify(quiet, str(path))["num_steps"] == 19
    with mpi_rollout.open(path) as data:
        expected = Feed(LARGE_ROWS, bits=1).expected(NUM_STEPS)
        assert_same_bytes({"a": data.observations[...]}, {"a": expected["observations"][:20]})
    with open_unmarked(str(path)) as file:
        number = file["trajectories/observations"].id.get_num_chunks() - 1
    damage(path, "trajectories/observations", "zeros", number)
    with pytest.raises(DataError, match=r"rows 16 to 2\d of envs 2 to 2: (it cannot be decompressed|the checksum)"):
        verify(quiet, str(path))
    report = recover(quiet, str(path), str(out), f"{out}.new")  # From where it was before it was full.
    assert report["num_steps"] == 19
    with h5py.File(out) as file:
        assert_same_bytes({"a": file["trajectories/observations"][...]}, {"a": expected["observations"][:20]})


def test_threads_may_read_one_file(tmp_path: Path):
    path = in_low_bits(tmp_path, "gzip")
    expected = Feed(LARGE_ROWS, bits=1).expected(NUM_STEPS)["observations"]
    with mpi_rollout.open(path) as data, ThreadPoolExecutor(4) as pool:
        readings = [pool.submit(lambda env: data.observations[3:, env], env % 3) for env in range(24)]
        readings += [pool.submit(lambda: data.observations[:20]) for _ in range(8)]
        assert all((each.result() == expected[3:, number % 3]).all() for number, each in enumerate(readings[:24]))
        assert all((each.result() == expected[:20]).all() for each in readings[24:])


def test_an_open_file_is_read_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path, "ended")
    monkeypatch.chdir(tmp_path)
    with mpi_rollout.open(path.name) as data:
        monkeypatch.chdir("/")
        assert data.rewards[...].shape == (NUM_STEPS, 3) and data.refresh() == NUM_STEPS and data.path == str(path)
        assert pickle.loads(pickle.dumps(data)).num_steps == NUM_STEPS
        damage(path, "trajectories/rewards", "zeros", 1)
        with pytest.raises(DataError, match=f"^{path}: trajectories/rewards, rows 8 to 15: "):
            data.rewards[...]
        path.rename(tmp_path / "run.h5")
        assert data.refresh() == NUM_STEPS and data.path == str(tmp_path / "run.h5")
        (tmp_path / "run.h5").unlink()
        with pytest.raises(DataError, match=r"/run\.h5: no such file"):
            data.refresh()


def test_who_has_a_part_open_reads_on_when_its_run_was_continued(tmp_path: Path):
    path, feed = written(tmp_path, "ended"), Feed()
    with mpi_rollout.open(path) as data:
        writer = feed.writer(tmp_path / "run.h5", 8, num_past=NUM_STEPS - 3)
        writer.finish(ending(NUM_STEPS - 3, complete=False))
        with pytest.raises(DataError, match="its list of chunks has no commit of 21 steps"):
            data.rewards[:5]  # It has fewer steps than there were.
        data.refresh()
        assert data.num_steps == NUM_STEPS - 3 and data.rewards[...].shape == (18, 3)
        writer = feed.writer(tmp_path / "run.h5", 8, num_past=10)
        writer.drain()
        writer.finish(ending(10, complete=False))


def test_recover_keeps_what_the_ranks_said(tmp_path: Path):
    path, out = written(tmp_path, "ended"), tmp_path / "new.h5"
    recover(quiet, str(path), str(out), f"{out}.new")
    with h5py.File(path) as before, h5py.File(out) as after:
        assert after["throughput/ranks"][...].tolist() == before["throughput/ranks"][...].tolist()
        assert after["throughput/ranks"]["host"][0] == b"here"
