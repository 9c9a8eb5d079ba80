"""The manifest of a set: what is written when it is begun and complete, and what is found wrong with it."""

from itertools import count
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from shard_sets import RANGES, RUN, ShardFeed, attributes_of, intervals_of, write, written_set
from written_data import IMAGES, NUM_STEPS, SMALL, Feed, ending, quiet

import mpi_rollout
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage.manifest import begin_manifest, is_set, read_manifest
from mpi_rollout.storage.ownership import give_name, identity
from mpi_rollout.storage.schema import INTERVAL, leaf_datasets
from mpi_rollout.storage.set_end import complete_manifest
from mpi_rollout.storage.shard_files import shard_path
from mpi_rollout.storage.verification import verify


@pytest.mark.parametrize(("space", "compression"), [(SMALL, "none"), (SMALL, "gzip"), (IMAGES, "none")])
def test_a_complete_set_gives_others_what_a_single_file_does(tmp_path: Path, space: spaces.Space, compression: str):
    path, single = written_set(tmp_path, "complete", space, compression=compression)
    with h5py.File(path) as file, h5py.File(single) as whole:
        columns, expected = leaf_datasets(file["trajectories"]), leaf_datasets(whole["trajectories"])
        assert columns.keys() == expected.keys() and all(column.is_virtual for column in columns.values())
        for name, column in columns.items():
            assert (column.dtype, column.shape) == (expected[name].dtype, expected[name].shape)
            assert column[...].tobytes() == expected[name][...].tobytes()
            assert {key: value.tolist() for key, value in column.attrs.items()} == {
                key: value.tolist() for key, value in expected[name].attrs.items()
            }
        for name in ("episodes", "faults", "throughput/intervals", "throughput/ranks", "throughput/limit"):
            assert file[name][...].tobytes() == whole[name][...].tobytes()
        assert file["trajectories"].attrs["num_steps"] == whole["trajectories"].attrs["num_steps"]
        own = {"run", "shards", "config", "digest"}
        assert {name: str(file.attrs[name]) for name in file.attrs.keys() - own} == {
            name: str(whole.attrs[name]) for name in whole.attrs.keys() - own
        }


@pytest.mark.parametrize("kind", ["running", "complete"])
def test_a_manifest_says_which_envs_are_where(tmp_path: Path, kind: str):
    path, single = written_set(tmp_path, kind)
    manifest = read_manifest(str(path))
    assert (manifest.run, list(manifest.ranges)) == (RUN, list(RANGES))
    assert manifest.is_complete == (kind == "complete") == bool(manifest.ends)
    assert is_set(str(path)) and not is_set(str(single))


def test_a_percent_sign_in_the_name_of_a_set_means_itself(tmp_path: Path):
    path, single = written_set(tmp_path, "complete", name="50%b of it.h5")
    assert verify(quiet, str(path))["shards"] == len(RANGES)
    with h5py.File(path) as file, h5py.File(single) as whole:
        for column, expected in leaf_datasets(whole["trajectories"]).items():
            assert file["trajectories"][column][...].tobytes() == expected[...].tobytes()


class Killed(BaseException):
    pass


def kill_at_name(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die before the end of a set gives a file its name for the time `number`, counted from 0."""
    numbers = count()

    def give_or_die(*names: object) -> None:
        if next(numbers) == number:
            raise Killed
        give_name(*names)

    monkeypatch.setattr("mpi_rollout.storage.set_end.give_name", give_or_die)


@pytest.mark.parametrize("number", (0, 1, len(RANGES)))
def test_a_set_that_was_killed_at_its_end_is_ended_again(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        kill_at_name(number, patch)
        with pytest.raises(Killed):
            written_set(tmp_path, "complete")
    path = tmp_path / "set" / "big.h5"
    with mpi_rollout.open(f"{path}.part") as data, mpi_rollout.open(tmp_path / "single.h5") as expected:
        assert np.array_equal(data.rewards[...], expected.rewards[...])
        assert data.episodes.tobytes() == expected.episodes.tobytes()
    complete_manifest(str(path), ending(NUM_STEPS), intervals_of(tmp_path / "single.h5"))
    assert verify(quiet, str(path))["complete"] and sorted(each.name for each in path.parent.iterdir()) == [
        "big.h5",
        "big.h5.shards",
    ]


@pytest.mark.parametrize("number", (0, 1, len(RANGES)))
def test_a_set_that_is_extended_is_the_old_one_or_names_the_new_one(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
):
    path, _ = written_set(tmp_path, "complete")
    late = mpi_rollout.open(path)
    with mpi_rollout.open(path) as data:
        before = data.rewards[...]
    begin_manifest(str(path), attributes_of(tmp_path / "single.h5"), RUN, RANGES, identity(str(path))).release()
    for envs in RANGES:
        write(ShardFeed(Feed(SMALL, RANGES[-1].stop), envs), tmp_path / "longer.h5", NUM_STEPS + 4, "complete")
        (tmp_path / "longer.h5.part").rename(f"{shard_path(str(path), envs)}.part")
    with mpi_rollout.open(path) as data:
        assert np.array_equal(data.rewards[...], before)
    end = str(path), ending(NUM_STEPS + 4), np.zeros(0, INTERVAL), identity(str(path))
    with monkeypatch.context() as patch:
        kill_at_name(number, patch)
        with pytest.raises(Killed):
            complete_manifest(*end)
    if number:
        with pytest.raises(DataError, match=r"the run is being extended: read .*big\.h5\.part"):
            mpi_rollout.open(path)
    else:
        verify(quiet, str(path))
    assert verify(quiet, f"{path}.part")["num_steps"] == NUM_STEPS + 4
    complete_manifest(*end)
    assert verify(quiet, str(path))["num_steps"] == NUM_STEPS + 4 and not Path(f"{path}.part").exists()
    with late:  # It has read no shard until now.
        assert np.array_equal(late.rewards[...], before)


def test_a_set_with_a_shard_that_is_not_complete_does_not_end(tmp_path: Path):
    path, _ = written_set(tmp_path, "ended")
    with pytest.raises(DataError, match=r"envs-0-2\.h5\.part is not complete"):
        complete_manifest(str(path).removesuffix(".part"), ending(NUM_STEPS), np.zeros(0, INTERVAL))


def test_nobody_begins_where_another_run_writes(tmp_path: Path):
    path, single = written_set(tmp_path, "running")
    with pytest.raises(UsageError, match="another run is writing it"):
        begin_manifest(str(path).removesuffix(".part"), attributes_of(single), RUN, RANGES)
