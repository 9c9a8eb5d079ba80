"""The launcher by its environment, the SLURM job, and the ways out that the doctor names."""

import pytest

from mpi_rollout.doctor.probe import BAD, OK
from mpi_rollout.doctor.world import judge_launcher, judge_size, judge_slurm, launcher_of


@pytest.mark.parametrize(
    "environ, name",
    [
        ({"PRTE_LAUNCHED": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "Open MPI's mpirun"),
        ({"HYDI_CONTROL_FD": "7", "PMI_SIZE": "2"}, "MPICH's mpiexec (hydra)"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_MPI_TYPE": "pmi2", "PMI_SIZE": "2"}, "srun --mpi=pmi2"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, None),
    ],
)
def test_the_launcher_is_known_by_its_environment(environ: dict[str, str], name: str | None):
    launcher = launcher_of(environ)
    assert launcher is None if name is None else launcher.name == name


def test_a_launcher_of_the_library_s_own_kind_is_fine():
    assert judge_launcher("Open MPI v5", "", {"OMPI_COMM_WORLD_SIZE": "2"}).state == OK
    assert judge_launcher("Intel(R) MPI Library 2021", "", {"HYDI_CONTROL_FD": "7"}).state == OK


def test_a_slurm_job_whose_srun_may_not_take_cpus_per_task_is_warned_of():
    job = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "2"}
    assert judge_slurm(job)[0].advice.startswith("export SRUN_CPUS_PER_TASK=2")
    assert judge_slurm(job | {"SRUN_CPUS_PER_TASK": "2"})[0].state == OK
    assert judge_slurm({}) == []


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_process_that_is_alone_though_a_launcher_claims_more_is_bad(monkeypatch, variable: str):
    monkeypatch.setenv(variable, "3")
    found = judge_size(1, "MPICH 4", "")
    assert found.state == BAD and f"3 processes were started ({variable}=3), each is alone" in found.found
    assert judge_size(3, "MPICH 4", "").state == OK
