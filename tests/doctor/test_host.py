"""The host's shared memory, its SLURM job, and the file system of the output."""

import pytest

from mpi_rollout.config import RolloutConfig
from mpi_rollout.doctor import host
from mpi_rollout.doctor.findings import OK, WARN
from mpi_rollout.doctor.host import judge_folder, judge_seeds, judge_shared_memory, judge_slurm, mount_of
from mpi_rollout.errors import StorageError


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


def test_an_env_that_ignores_its_seed_is_warned_of_with_the_column_that_differs():
    found = judge_seeds(RolloutConfig(env_factory="forgetful_envs:Rewarding"))
    assert found.state == WARN and "it gives other rewards of step 0: " in found.found
    assert found.advice.startswith("seed every random generator of the env in reset(seed=...)")
    assert judge_seeds(RolloutConfig(env_factory="forgetful_envs:Seeded")).state == OK
    assert judge_seeds(RolloutConfig(env="CartPole-v1", vectorization_mode="envpool")) is None
