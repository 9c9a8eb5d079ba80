"""Ranks that never come do not leave the others waiting for ever."""

import pytest
from conftest import Job, Start, run_job
from kept import HOST, OUT

SHORT = (
    "--env",
    "CartPole-v1",
    "--num-envs",
    "4",
    "--num-steps",
    "20",
    "--progress",
    "none",
    "--start-timeout",
    "1",
    *OUT,
)
OTHER = "from mpi4py import MPI; import time; time.sleep(20)"


@pytest.mark.mpi(2)
def test_a_rank_that_never_starts_mpi_ends_the_job_in_time(job: Job, num_ranks: int):
    result = run_job([*job.command(1, *SHORT), ":", "-n", "1", "true"], job.folder)
    message = f"rank 0 ({HOST}): another rank has not started MPI within 1 s; start this program on all 2 ranks"
    assert result.code == 78 and result.messages == [f"{message}, or give them more time by --start-timeout"]


@pytest.mark.mpi(2)
def test_a_rank_that_runs_another_mpi_program_ends_the_job_in_time(job: Job, num_ranks: int):
    command = job.command(1, *SHORT)
    result = run_job([*command, ":", "-n", "1", command[command.index("-m") - 1], "-c", OTHER], job.folder)
    message = f"rank 0 ({HOST}): rank 1 has not called python -m mpi_rollout run within 1 s; call it on all ranks"
    assert result.code == 78 and result.messages == [f"{message}, or give them more time by --start-timeout"]


def test_a_limit_that_is_none_is_refused(job: Job):
    [result] = job.series([Start((*SHORT, "--start-timeout", "0"))])
    assert result.code == 64 and "--start-timeout must be more than 0 s and at most" in result.messages[0]
