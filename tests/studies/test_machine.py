"""A study has a folder to itself, in which nothing is of another."""

import fcntl
import os
from pathlib import Path

import pytest

from mpi_rollout.errors import UsageError
from mpi_rollout.studies.machine import claimed, job_folder


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "study.json")


def leave_behind(out: str) -> Path:
    """What a study that was killed leaves."""
    folder = job_folder(out)
    (folder / "minari").mkdir(parents=True)
    (folder / "minari" / "data.hdf5").write_text("old")
    (folder / "1.h5.part").write_text("old")
    return folder


def test_what_was_left_behind_is_gone_before_and_all_is_gone_after(out: str):
    leave_behind(out)
    with claimed(out) as folder:
        assert folder.is_dir() and not list(folder.iterdir())
    assert not folder.exists()


def test_who_is_refused_removes_nothing_of_who_is_there(out: str):
    folder = leave_behind(out)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(UsageError, match="another process does this study"), claimed(out):
        pass
    assert len(list(folder.iterdir())) == 2
    os.close(descriptor)


def test_without_locks_nothing_is_removed_that_may_be_of_who_is_there(out: str, monkeypatch: pytest.MonkeyPatch):
    leave_behind(out)
    monkeypatch.setattr(fcntl, "flock", unsupported)
    with claimed(out) as folder:
        assert len(list(folder.iterdir())) == 2


def unsupported(_descriptor: int, _operation: int) -> None:
    raise OSError("no locks available")
