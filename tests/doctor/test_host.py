"""What dead jobs have left on the host, and its shared memory."""

import mmap
import os

from mpi_rollout.doctor.host import SHARED_MEMORY, judge_segments, judge_sessions, judge_shared_memory, paths_in_use
from mpi_rollout.doctor.probe import OK, WARN


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
