"""How many episodes are in memory while they are exported."""

import shutil
from pathlib import Path

import pytest
from written_data import quiet, written

import mpi_rollout
from mpi_rollout.data.exports import d4rl, minari, selection
from mpi_rollout.data.exports.selection import envs_per_group
from mpi_rollout.storage.sandbox import MEMORY_PER_BYTE


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
