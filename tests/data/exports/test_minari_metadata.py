"""What users of a Minari data set are told about its env."""

from pathlib import Path

import pytest
from gymnasium.envs.registration import EnvSpec

from mpi_rollout.data.exports.minari_metadata import is_installed, modules_of, why_not_recovered


def test_an_env_whose_module_is_not_there_is_not_recovered():
    spec = EnvSpec("Gone-v0", entry_point="gone.envs:Env")
    assert why_not_recovered(spec.to_json()) == "its module gone is not found here"
    assert why_not_recovered(EnvSpec("Cart-v0", "gymnasium.envs.classic_control:CartPoleEnv").to_json()) == ""


def test_a_module_of_a_folder_is_told_from_one_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_grid.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert modules_of(EnvSpec("Grid-v0", entry_point="own_grid:Env")) == ["own_grid"]
    assert not is_installed("own_grid") and is_installed("gymnasium") and is_installed("json")
