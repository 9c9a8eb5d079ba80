"""The launch: the world is the one that was meant and all ranks mean the same, or nothing begins."""

from pathlib import Path

import jobs
import pytest
from jobs import CLONE, Job, Result, assert_same_bytes, datasets, preloadable, run_job, worlds

pytestmark = pytest.mark.full_start

RUN = ("--env-factory", "envs:Counting", "--num-envs", "6", "--num-steps", "20", "--progress", "none")
OUT = ("--out", "run.h5")
UNDER_A_LAUNCHER = {
    "OMPI_COMM_WORLD_SIZE": {"OMPI_COMM_WORLD_SIZE": "2"},
    "PMI_SIZE": {"PMI_SIZE": "2"},
    "SLURM_NTASKS": {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"},
}


@pytest.fixture(autouse=True)
def as_users_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the settings that make the starts of all other tests cheap."""
    monkeypatch.setattr(jobs, "CHEAP_STARTS", {"OMPI_MCA_btl": "^ofi"})
    monkeypatch.delenv("OMP_NUM_THREADS")


def assert_refused(result: Result, folder: Path) -> str:
    """Nothing began, and this was said once; return it."""
    assert result.code == 78, result.err
    assert len(result.messages) == 1 and result.num_tracebacks == 0, result.err
    assert list(folder.glob("run.h5*")) == []
    return result.messages[0]


@pytest.mark.parametrize("variable", UNDER_A_LAUNCHER)
def test_a_process_that_is_alone_though_a_launcher_claims_more_is_refused(job, variable):
    line = assert_refused(job(None, *RUN, *OUT, **UNDER_A_LAUNCHER[variable]), job.folder)
    assert f"the launcher started 2 processes ({variable}=2) but each is alone in its MPI world" in line
    assert "mpi4py loaded Open MPI v" in line or "mpi4py loaded MPICH" in line
    assert "start with the mpirun of that library, or under srun with --mpi=pm" in line


def test_a_process_that_is_alone_says_so_where_the_first_has_not(job):
    result = job(None, *RUN, *OUT, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    [message] = result.messages
    assert result.code == 78 and message.startswith("rank 1 (") and "each is alone in its MPI world" in message
    assert list(job.folder.iterdir()) == []


@pytest.mark.mpi(1, 2)
def test_what_helps_is_said_where_mpi_ends_the_ranks_while_it_starts(job, num_ranks):
    result = job(num_ranks, *RUN, *OUT, LD_PRELOAD=preloadable("ending_mpi.c", job.folder))
    assert assert_refused(result, job.folder).startswith("MPI could not start, see above; mpi4py loaded ")


def test_a_batch_script_that_starts_one_process_itself_may_run(job):
    assert job.collect(None, *RUN, SLURM_NTASKS="2", SLURM_PROCID="0").exists()


@pytest.mark.mpi(2)
def test_ranks_that_hydra_started_in_a_slurm_job_of_one_task_may_run(job, num_ranks):
    assert job.collect(num_ranks, *RUN, SLURM_NTASKS="1", SLURM_STEP_ID="0").exists()


def test_under_the_launcher_of_another_mpi_nothing_begins(job):
    """The real thing: an Open MPI world started by MPICH's mpiexec."""
    ours, theirs = CLONE / ".venv", CLONE / ".venv-mpich"
    if not ((ours / "bin/mpiexec").exists() and (theirs / "bin/mpiexec").exists()):
        pytest.skip("needs both virtual environments: make install, make install MPI=mpich")
    program = [str(ours / "bin/python"), "-m", "mpi_rollout", *RUN, *OUT]
    result = run_job([str(theirs / "bin/mpiexec"), "-n", "2", *program], job.folder)
    line = assert_refused(result, job.folder)
    assert "(PMI_SIZE=2)" in line and "Open MPI v" in line and "--mpi=pmix" in line


@pytest.mark.mpi(2)
def test_the_expected_number_of_ranks_may_run(job, num_ranks):
    assert job.collect(num_ranks, *RUN, "--expect-ranks", num_ranks).exists()


@pytest.mark.mpi(2)
def test_another_number_of_ranks_than_expected_is_refused(job, num_ranks):
    line = assert_refused(job(num_ranks, *RUN, *OUT, "--expect-ranks", "4"), job.folder)
    assert line.startswith(f"--expect-ranks 4, got {num_ranks} ranks; mpi4py loaded ")


@pytest.mark.mpi
def test_ranks_that_were_given_different_seeds_are_refused(job):
    command = worlds(job.folder, (1, [*RUN, *OUT]), (1, [*RUN, *OUT, "--seed", "7"]))
    line = assert_refused(run_job(command, job.folder), job.folder)
    assert "the ranks do not agree on the configuration: rank 0 has" in line and "rank 1 (" in line
    assert '"seed": 0' in line and '"seed": 7' in line
    assert "start all ranks with the same command" in line


@pytest.mark.any_mpi
@pytest.mark.mpi
def test_ranks_of_which_one_expects_another_number_are_refused(job):
    command = worlds(job.folder, (1, [*RUN, *OUT]), (1, [*RUN, *OUT, "--expect-ranks", "3"]))
    assert "--expect-ranks 3, got 2 ranks" in assert_refused(run_job(command, job.folder), job.folder)


@pytest.mark.mpi
def test_a_rank_that_alone_was_given_a_wrong_option_is_named(job):
    result = run_job(worlds(job.folder, (2, [*RUN, *OUT]), (1, [*RUN, *OUT, "--sead", "7"])), job.folder)
    assert result.code == 64 and len(result.messages) == 1
    assert (
        result.messages[0].startswith("rank 2 (")
        and "there is no option --sead; did you mean --seed?" in result.messages[0]
    )
    assert list(job.folder.iterdir()) == []


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_ranks_whose_envs_have_different_spaces_are_refused_with_the_difference(job, num_ranks):
    result = job(num_ranks, "--env-factory", "envs:different_space", *RUN[2:], *OUT)
    line = assert_refused(result, job.folder)
    assert "the ranks do not agree on the observation space: rank 0 has" in line and "rank 1 (" in line
    assert str(2**62) in line and str(2**62 - 1) in line


@pytest.mark.mpi
def test_more_ranks_than_cores_give_the_same_data(job):
    alone = datasets(job.collect(None, *RUN, out="alone.h5"))
    assert_same_bytes(datasets(job.collect(5, *RUN)), alone)


def test_a_dedicated_root_needs_another_rank(job):
    result = job(None, *RUN, *OUT, "--root-envs", "0")
    assert result.code == 64 and len(result.messages) == 1 and result.num_tracebacks == 0
    assert "ranks" in result.messages[0]
    assert list(job.folder.iterdir()) == []


def test_the_program_runs_from_any_folder_as_an_installed_module(tmp_path):
    """Without PYTHONPATH: as users start it."""
    folder = tmp_path / "somewhere"
    folder.mkdir()
    result = Job(folder)(None, "--env", "CartPole-v1", *RUN[2:], *OUT, PYTHONPATH="")
    assert result.code == 0 and (folder / "run.h5").exists()
