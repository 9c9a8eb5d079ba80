"""`connect(..., record=...)`: the file says what the trainer did and saw, and nothing else."""

from pathlib import Path
from typing import Any

import h5py
import pytest
from diaries import differences, keep_diary, recorded
from jobs import Job

from mpi_rollout.commands.inspection import verify
from mpi_rollout.train import recorder

MODES = "next_step", "same_step", "disabled"
CARTPOLE = "CartPole-v1", {"max_episode_steps": 12}


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have blocks of 16 rows, so that what a trainer does goes over their ends."""
    from mpi_rollout.storage import schema

    monkeypatch.setattr(schema, "rows_per_block", lambda *_: 16)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("env", "commit_every_s"), [("CartPole-v1", 10.0), ("CartPole-v1", 0.0), ("envs:Nested", 10.0)]
)
def test_the_file_has_what_the_trainer_saw(
    tmp_path: Path, env: str, mode: str, commit_every_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "COMMIT_EVERY_S", commit_every_s)
    path = tmp_path / "run.h5"
    kwargs = {"max_episode_steps": 12} if env == "CartPole-v1" else {}
    told = keep_diary(env, 7, str(path), {"autoreset_mode": mode, "env_kwargs": kwargs})
    assert told is not None
    assert not differences(told, recorded(path))
    assert sum(map(len, told)) > 20
    verify(str(path))
    with h5py.File(path) as file:
        assert file["throughput"].attrs["env_steps"] == sum(file["episodes"]["length"])


@pytest.mark.mpi(2, 3)
def test_it_does_so_however_envs_are_served(job: Job, num_ranks: int):
    ways: list[dict[str, Any]] = [{}, {"num_groups": 2}, {"batch_size": 1}, {"dedicated_root": True, "batch_size": 1}]
    cases = [
        (
            "CartPole-v1",
            11,
            f"{mode}{place}.h5",
            {"autoreset_mode": mode, "env_kwargs": {"max_episode_steps": 9}, **way},
        )
        for mode in MODES
        for place, way in enumerate(ways[: 1 if mode == "disabled" else 4])
    ]
    for told, (_, _, name, _) in zip(job.train(num_ranks, "diaries", cases, 8), cases, strict=True):
        path = job.folder / name
        stored = recorded(path)
        # Envs of ranks that were ready first are ahead: their last steps are left out.
        whole = [mine[: len(others) - 1] if name[-4] > "1" else mine for mine, others in zip(told, stored, strict=True)]
        stored = [others[: len(mine)] for mine, others in zip(whole, stored, strict=True)]
        assert not differences(whole, stored), name
        assert sum(map(len, whole)) > (20 if name[-4] < "2" else 0), name
        verify(str(path))
