"""What a process can tell of the job of a batch system in which nobody has started it as a rank."""

import pytest
from jobs import Job

from mpi_rollout.doctor.findings import OK, WARN
from mpi_rollout.doctor.launch import judge_launcher
from mpi_rollout.process.allocation import OF_LAUNCHERS, SIZES, starting, unused

BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
STEP = BATCH | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
SHELL = BATCH | {"SLURM_STEP_ID": str(0xFFFFFFFA), "SLURM_PROCID": "0"}
RUN = ("--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "5", "--out", "run.h5", "--progress", "none")
OPEN_MPI, MPICH = "Open MPI v5.0.11", "MPICH Version: 5.0.2"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (BATCH, "an allocation of 4 tasks (SLURM_NTASKS=4)"),
        (SHELL, "an allocation of 4 tasks (SLURM_NTASKS=4)"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}, "an allocation of 4 nodes (SLURM_JOB_NUM_NODES=4)"),
        ({"PBS_NP": "4"}, "an allocation of 4 slots (PBS_NP=4)"),
        ({"LSB_DJOB_NUMPROC": "4"}, "an allocation of 4 slots (LSB_DJOB_NUMPROC=4)"),
        ({"NSLOTS": "4"}, "an allocation of 4 slots (NSLOTS=4)"),
    ],
)
def test_a_process_that_no_launcher_started_is_one_of_the_tasks_of_its_job(environ: dict[str, str], words: str):
    assert unused(environ) == (4, words)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        BATCH | {"SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "8", "SLURM_ARRAY_TASK_ID": "3"},
        STEP,
        *(BATCH | {name: "1"} for name in OF_LAUNCHERS),
        {"PBS_NODEFILE": "/nowhere", "LSB_DJOB_NUMPROC": "1"},
    ],
)
def test_a_job_of_one_task_and_a_rank_that_a_launcher_started_leave_nothing_unused(environ: dict[str, str]):
    assert unused(environ) == (1, "")


def test_the_lines_of_a_node_file_are_counted(tmp_path):
    (tmp_path / "nodes").write_text("node1\nnode1\nnode2\n")
    environ = {"PBS_NODEFILE": str(tmp_path / "nodes")}
    assert unused(environ) == (3, "an allocation of 3 slots (PBS_NODEFILE has 3 lines)")


@pytest.mark.parametrize(
    ("environ", "library", "command"),
    [
        ({}, OPEN_MPI, "mpirun -n 3"),
        ({"PBS_NP": "4"}, OPEN_MPI, "mpirun -n 3"),
        (BATCH, OPEN_MPI, "srun --mpi=pmix -n 3"),
        (SHELL, MPICH, "srun --mpi=pmi2 -n 3"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}, OPEN_MPI, "srun --mpi=pmix -n 3"),
        (STEP | {"PMI_RANK": "0"}, MPICH, "srun --mpi=pmi2 -n 3"),
        (STEP, "", "srun -n 3"),
        (STEP | {"SLURM_NTASKS": "2"}, OPEN_MPI, "sbatch --ntasks=3"),
        (STEP | {"SLURM_NTASKS": "1", "HYDI_CONTROL_FD": "7", "PMI_RANK": "0"}, MPICH, "mpirun -n 3"),
        (BATCH | {"OMPI_COMM_WORLD_SIZE": "2"}, OPEN_MPI, "mpirun -n 3"),
    ],
)
def test_a_command_that_starts_ranks_is_in_the_words_of_who_started_this_one(
    environ: dict[str, str], library: str, command: str
):
    assert starting(3, library, environ) == command


def test_one_rank_in_an_allocation_of_many_is_told_at_once(job: Job):
    result = job(None, *RUN, **BATCH)
    [line] = result.messages
    assert result.code == 0 and line.startswith(
        "1 rank in an allocation of 4 tasks (SLURM_NTASKS=4); to use all: srun "
    )


TRAINER = """
import mpi_rollout
for _ in range(2):
    mpi_rollout.connect("CartPole-v1", 2{meant}).close()
"""


def test_a_trainer_that_is_the_only_rank_is_told_once(job: Job):
    [line] = job.script(None, TRAINER.format(meant=""), **BATCH).messages
    assert line.startswith("1 rank in an allocation of 4 tasks") and line.endswith("say so by comm=MPI.COMM_SELF")
    meant = "from mpi4py import MPI\n" + TRAINER.format(meant=", comm=MPI.COMM_SELF")
    assert job.script(None, meant, **BATCH).messages == []


@pytest.mark.parametrize("meant", [("--expect-ranks", "1"), ("--dry-run",)])
def test_who_means_one_rank_is_told_nothing(job: Job, meant: tuple[str, ...]):
    result = job(None, *RUN, *meant, **BATCH)
    assert result.code == 0 and result.messages == []


@pytest.mark.mpi(1)
def test_one_rank_of_a_launcher_is_told_nothing(job: Job, num_ranks: int):
    variables = dict.fromkeys(SIZES, "4")
    result = job(num_ranks, *RUN, **variables)
    assert result.code == 0 and result.messages == []


def test_the_doctor_warns_of_it():
    found = judge_launcher(OPEN_MPI, "", BATCH)
    assert (found.state, found.found) == (WARN, "none: one process in an allocation of 4 tasks (SLURM_NTASKS=4)")
    assert "srun --mpi=pmix -n 4 python -m mpi_rollout doctor" in found.advice
    assert judge_launcher(OPEN_MPI, "", {}).state == OK
