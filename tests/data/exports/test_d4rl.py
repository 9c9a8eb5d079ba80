"""A file of D4RL has all transitions in flat arrays, exactly."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from written_data import quiet, written

import mpi_rollout
from mpi_rollout.data.exports import d4rl, selection

SPACE = spaces.Box(-1, 1, (2,), np.float64)
OPTIONS = {"compression": "gzip", "float32": False, "algorithm_name": None}


def exported(file: Path, **options: object) -> dict[str, np.ndarray]:
    """Export a file in this process; return all datasets."""
    out = file.parent / "flat.h5"
    d4rl.export(quiet, str(file), [str(file)], str(out), OPTIONS | options)
    arrays = {}
    with h5py.File(out) as flat:
        flat.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return arrays


@pytest.mark.parametrize("block_nbytes", [1, 2**24])
@pytest.mark.parametrize("kind", ["complete", "running"])
def test_all_transitions_are_there_episode_after_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, block_nbytes: int
):
    monkeypatch.setattr(d4rl, "BLOCK_NBYTES", block_nbytes)
    file = written(tmp_path, kind, SPACE)
    flat = exported(file)
    with mpi_rollout.open(file) as data:
        episodes = {int(each.row["number"]): each for each in data.iter_episodes(selection.exported_rows(data))}
    seen = [episodes[number] for number in sorted(episodes)]
    parts = {
        "observations": [each.observations[:-1] for each in seen],
        "next_observations": [each.observations[1:] for each in seen],
        "actions": [each.actions for each in seen],
        "rewards": [each.rewards for each in seen],
        "terminals": [each.terminations for each in seen],
    }
    for name, arrays in parts.items():
        expected = np.concatenate(arrays)
        assert flat[name].dtype == expected.dtype and flat[name].tobytes() == expected.tobytes(), name
    ends = np.cumsum([each.length for each in seen]) - 1
    assert np.array_equal(np.flatnonzero(flat["terminals"] | flat["timeouts"]), ends)
    assert flat["metadata/algorithm"] == b"random" and flat["metadata/env"] == b"CartPole-v1"


def test_floats_can_be_what_d4rl_has(tmp_path: Path):
    flat = exported(written(tmp_path, "complete", SPACE), float32=True)
    assert {flat[name].dtype.str for name in ("observations", "next_observations", "rewards")} == {"<f4"}
    assert flat["actions"].dtype == np.int64


def test_nested_observations_are_groups(tmp_path: Path):
    flat = exported(written(tmp_path, "complete"))
    assert {"observations/x", "next_observations/x", "observations/n/_index_0"} <= flat.keys()
