"""What dead jobs have left on the host, its shared memory, and the file system of the output."""

import mmap
import os

import pytest

from mpi_rollout.doctor import host
from mpi_rollout.doctor.findings import OK, WARN
from mpi_rollout.doctor.host import (
    SHARED_MEMORY,
    judge_folder,
    judge_segments,
    judge_sessions,
    judge_shared_memory,
    judge_slurm,
    mount_of,
    paths_in_use,
)
from mpi_rollout.errors import StorageError


def test_a_segment_of_a_dead_job_is_named_and_left_alone(tmp_path):
    segment = tmp_path / "mpich_shm_12345678_0"
    segment.write_bytes(bytes(8192))
    assert judge_segments(tmp_path).state == OK  # It may be in the making.
    os.utime(segment, (1, 1))
    found = judge_segments(tmp_path)
    assert found.state == WARN and segment.name in found.found and f"rm {tmp_path}/mpich_shm_*" in found.advice
    assert found.figures["leaked_segments"] == 1 and segment.exists()


def test_a_segment_that_a_process_has_mapped_is_in_use():
    path = SHARED_MEMORY / f"mpich_shm_test_{os.getpid()}"
    try:
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert str(path) in paths_in_use(SHARED_MEMORY)
        assert str(path) not in paths_in_use(SHARED_MEMORY)
    finally:
        path.unlink()


def test_the_folder_of_a_dead_launcher_is_named_and_that_of_a_live_one_is_not(tmp_path):
    for name in (os.getpid(), 2**22 + 1, "vm.0"):  # Linux has no process of the second; the last ends in a user id.
        (tmp_path / f"ompi.{name}").mkdir()
        os.utime(tmp_path / f"ompi.{name}", (1, 1))
    found = judge_sessions(tmp_path)
    assert found.state == WARN and found.found == f"1 of dead launchers in {tmp_path}: ompi.{2**22 + 1}"


def test_a_host_without_shared_memory_is_warned_of(tmp_path):
    assert judge_shared_memory(tmp_path / "shm").state == WARN


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path):
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/b {tmp_path}/a\\040b nfs4 rw 0 0\nc {tmp_path}/a tmpfs rw 0 0\n"
    (tmp_path / "a b").mkdir()
    assert mount_of(str(tmp_path / "a b"), mounts) == (f"{tmp_path}/a b", "nfs4")
    assert mount_of("/", mounts) == ("/", "ext4")


@pytest.mark.parametrize(
    ("kind", "state", "advice"), [("nfs4", WARN, "SWMR"), ("ext4", OK, ""), ("lustre", OK, "stripe")]
)
def test_what_runs_make_of_a_file_system_is_said(tmp_path, monkeypatch, kind: str, state: str, advice: str):
    monkeypatch.setattr(host, "mount_of", lambda *_: ("/", kind))
    found = judge_folder(str(tmp_path))
    assert found.state == state and advice in found.advice and f"on {kind} (/)" in found.found


@pytest.mark.parametrize(("path", "words"), [("run.h5", "that is a file"), ("/proc/self/fdinfo", "cannot write to")])
def test_what_is_no_folder_or_cannot_be_written_to_is_refused_as_a_run_does(tmp_path, path: str, words: str):
    (tmp_path / "run.h5").touch()
    with pytest.raises(StorageError, match=words):
        judge_folder(str(tmp_path / path))


def test_a_slurm_job_whose_srun_may_not_take_cpus_per_task_is_warned_of():
    job = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "2"}
    assert judge_slurm(job).advice.startswith("export SRUN_CPUS_PER_TASK=2")
    assert judge_slurm(job | {"SRUN_CPUS_PER_TASK": "2"}).state == OK
    assert judge_slurm({}) is None
