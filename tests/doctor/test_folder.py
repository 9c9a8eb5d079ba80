"""What the doctor says of a file system."""

import errno
import fcntl
import os

from mpi_rollout.doctor.folder import Mount, judge_kind, judge_locks, mount_of
from mpi_rollout.doctor.probe import OK, WARN


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path):
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/b {tmp_path}/a\\040b nfs4 rw 0 0\nc {tmp_path}/a tmpfs rw 0 0\n"
    (tmp_path / "a b").mkdir()
    mount = mount_of(str(tmp_path / "a b"), mounts)
    assert mount == Mount(f"{tmp_path}/a b", "nfs4")
    assert judge_kind(mount, "x").state == WARN and "SWMR" in judge_kind(mount, "x").advice
    assert mount_of("/", mounts) == Mount("/", "ext4") and judge_kind(Mount("/", "ext4"), "x").state == OK


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
