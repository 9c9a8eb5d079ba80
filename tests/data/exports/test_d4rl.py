"""A file of D4RL has all transitions in flat arrays, exactly."""

from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job
from written_data import quiet, written

import mpi_rollout
from mpi_rollout.data.exports import d4rl, minari, selection
from mpi_rollout.errors import DataError

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
    with mpi_rollout.open([file]) as data:
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


def test_files_of_other_infos_are_refused(job: Job):
    run = ["--env-factory", "telling_envs:Telling", "--num-envs", "2", "--num-steps", "20"]
    lives, small, none = (
        job.collect(None, *run, *options, out=name)
        for name, options in (
            ("lives.h5", ["--store-infos", '{"lives": int}']),
            ("small.h5", ["--store-infos", '{"lives": "int16"}']),
            ("none.h5", []),
        )
    )
    out, files = str(job.folder / "flat.h5"), [str(lives), str(small), str(none)]
    for first, second in ((0, 1), (0, 2), (2, 0)):
        pair = [files[first], files[second]]
        with pytest.raises(DataError, match="do not have the same infos/lives; export each by itself"):
            d4rl.export(quiet, pair[0], pair, out, OPTIONS)
    d4rl.export(quiet, files[0], [files[0], files[0]], out, OPTIONS)


def test_infos_and_extras_of_one_name_are_both_there():
    zeros, ones = np.zeros(3), np.ones(2)
    episode = SimpleNamespace(further={}, 
        observations=zeros, actions=ones, rewards=ones, terminations=ones > 2, truncations=ones > 2, length=2,
        terminated=False, truncated=False, infos={"value": zeros}, extras={"value": ones, "log_prob": ones},
    )  # fmt: skip
    columns = d4rl.columns_of(episode)
    assert {name for name in columns if name.startswith("infos")} == {
        "infos/value",
        "infos/extras/value",
        "infos/action_log_probs",
    }
    assert columns["infos/extras/value"] is ones
    episode.infos["extras"] = zeros
    assert d4rl.columns_of(episode)["infos/policy_extras/value"] is ones
    assert minari.infos_of(episode)["policy_extras"]["value"].tolist() == [1, 1, 0]
