"""How much room a file takes is told, and refused where there is less."""

import pytest

from mpi_rollout.collect import room
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core import host
from mpi_rollout.errors import StorageError


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(host.ANY_SIZE, raising=False)


def config(out: object, **options: object) -> RolloutConfig:
    return RolloutConfig(env="CartPole-v1", num_envs=10, num_steps=1000, out=str(out), **options)


@pytest.mark.parametrize(
    "row_nbytes, old_nbytes, options, free, told",
    [
        (10_000, 0, {}, 10**9, ""),
        (1_000_000, 0, {}, 2 * 10**9, "about 1.0 GB in {out} (2.0 GB free there)"),
        (1_000_000, 0, {}, 10**9 - 1, None),
        (1_000_000, 6 * 10**8, {}, 7 * 10**8, "about 1.0 GB in {out} (700.0 MB free there)"),
        (1_000_000, 6 * 10**8, {}, 5 * 10**8, None),  # The new file has what the old one had before that one goes.
        (1_000_000, 0, {"compression": "gzip"}, 10, "at most 1.0 GB in {out} (0.0 MB free there)"),
        (1_000_000, 0, {"trajectories": False}, 10, ""),
    ],
)  # fmt: skip
def test_a_file_is_told_and_refused_by_its_size(tmp_path, monkeypatch, row_nbytes, old_nbytes, options, free, told):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": free}))
    out = tmp_path / "run.h5"
    if told is not None:
        said = told and "10 envs x 1,000 steps take " + told.format(out=out)
        assert room.check_file(config(out, **options), row_nbytes, old_nbytes) == said
        return
    with pytest.raises(StorageError, match=r"take about 1\.0 GB in .* free; use fewer steps or envs, another --out, "):
        room.check_file(config(out, **options), row_nbytes, old_nbytes)
    monkeypatch.setenv(host.ANY_SIZE, "1")
    assert room.check_file(config(out, **options), row_nbytes, old_nbytes)
