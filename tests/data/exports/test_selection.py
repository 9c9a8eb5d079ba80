"""Which episodes a rank exports, and in what order."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from written_data import quiet, written

import mpi_rollout
from mpi_rollout.data.exports import d4rl, minari, selection
from mpi_rollout.data.exports.selection import envs_per_group, share_of
from mpi_rollout.storage.sandbox import MEMORY_PER_BYTE


@pytest.mark.parametrize("num_shares", [1, 3, 40])
def test_every_episode_is_in_one_share(num_shares: int):
    rows = np.zeros(25, [("length", "i8"), ("number", "i8")])
    rows["length"], rows["number"] = np.random.default_rng(0).integers(1, 500, 25), np.arange(25)
    shares = [share_of(rows, share, num_shares, 100)["number"] for share in range(num_shares)]
    assert np.array_equal(np.concatenate(shares), rows["number"])


def test_shares_take_about_as_long():
    rows = np.zeros(1000, [("length", "i8")])
    rows["length"] = np.random.default_rng(0).integers(1, 500, 1000)
    works = [(share_of(rows, share, 4, 100)["length"] * 100 + 2**13).sum() for share in range(4)]
    assert max(works) < 1.05 * min(works)


@pytest.mark.parametrize(("nbytes", "envs"), [(1, 2**28), (2**27, 2), (2**27 + 1, 1), (2**40, 1), (0, 2**28)])
def test_running_episodes_of_a_group_fit_into_memory(nbytes: int, envs: int):
    assert envs_per_group(nbytes) == envs


@pytest.mark.parametrize("kind", ["minari", "d4rl"])
def test_an_export_may_have_memory_for_all_files_and_for_the_longest_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    file, second, allowed = written(tmp_path, "complete"), tmp_path / "second.h5", list[int]()
    shutil.copy(file, second)
    monkeypatch.setattr(selection, "RUNNING_NBYTES", 1)
    monkeypatch.setattr(selection, "allow_memory", allowed.append)
    arguments = quiet, str(file), [str(file), str(second)]
    if kind == "minari":
        minari.export(*arguments, str(tmp_path), {"dataset_id": "x-v0"})
    else:
        d4rl.export(*arguments, str(tmp_path / "flat.h5"), d4rl_options())
    files = MEMORY_PER_BYTE * (file.stat().st_size + second.stat().st_size)
    with mpi_rollout.open(file) as data:
        longest = max(data.episodes["length"].max(), data.unfinished["length"].max()) * data.transition_nbytes
    assert min(allowed) == files and max(allowed) == files + selection.COPIES * longest


def d4rl_options() -> dict[str, object]:
    return {"compression": "gzip", "float32": False, "algorithm_name": None}
