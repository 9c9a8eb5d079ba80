"""The manifest of a set: what is written when it is begun and complete, and what is found wrong with it."""

from pathlib import Path

import h5py
import pytest
from gymnasium import spaces
from shard_sets import RANGES, RUN, written_set
from written_data import IMAGES, SMALL

from mpi_rollout.storage.manifest import is_set, read_manifest
from mpi_rollout.storage.schema import leaf_datasets


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
