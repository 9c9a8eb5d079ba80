"""What the doctor says of a file system."""

import errno
import fcntl
import os

import pytest

from mpi_rollout.doctor import host
from mpi_rollout.doctor.host import judge_folder, judge_locks, mount_of
from mpi_rollout.doctor.probe import BAD, OK, WARN


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path):
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/b {tmp_path}/a\\040b nfs4 rw 0 0\nc {tmp_path}/a tmpfs rw 0 0\n"
    (tmp_path / "a b").mkdir()
    assert mount_of(str(tmp_path / "a b"), mounts) == (f"{tmp_path}/a b", "nfs4") and mount_of("/", mounts) == (
        "/",
        "ext4",
    )


@pytest.mark.parametrize(
    ("kind", "state", "advice"), [("nfs4", WARN, "SWMR"), ("ext4", OK, ""), ("lustre", OK, "stripe")]
)
def test_what_runs_make_of_a_file_system_is_said(tmp_path, monkeypatch, kind: str, state: str, advice: str):
    monkeypatch.setattr(host, "mount_of", lambda *_: ("/", kind))
    found = next(judge_folder(str(tmp_path)))
    assert (
        (found.check, found.state) == ("folder", state) and advice in found.advice and f"on {kind} (/)" in found.found
    )


def test_a_file_system_without_locks_is_warned_of_with_the_variable(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    assert judge_locks(str(tmp_path)).state == OK
    monkeypatch.setattr(fcntl, "flock", no_locks)
    found = judge_locks(str(tmp_path))
    assert found.state == WARN and "HDF5_USE_FILE_LOCKING=FALSE" in found.advice
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
    assert judge_locks(str(tmp_path)).state == OK


def test_what_is_no_folder_or_cannot_be_written_to_is_bad(tmp_path):
    (tmp_path / "run.h5").touch()
    for path, words in ((tmp_path / "run.h5", "run.h5 is no folder"), ("/proc/self/fdinfo", "cannot write to")):
        [found] = judge_folder(str(path))
        assert (found.check, found.state) == ("folder", BAD) and words in found.found
