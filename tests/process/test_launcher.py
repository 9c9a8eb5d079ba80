"""Ranks end with their launcher, whatever their envs are doing."""

import os
import signal

import pytest
from jobs import Job, Running, are_gone, processes_in, run_job
from stopped_runs import OUT, kwargs

pytestmark = pytest.mark.full_start

SHORT = ("--num-envs", "6", "--num-steps", "20", "--progress", "none", *OUT)


def assert_ranks_end_with_the_launcher(job: Job, run: Running) -> None:
    """Kill the launcher when an env of `departures` is at work."""
    run.wait_until((job.folder / "departing").exists)
    os.kill(run.pid, signal.SIGKILL)
    assert are_gone(job.folder), processes_in(job.folder)
    run.finish()


@pytest.mark.mpi(2)
@pytest.mark.parametrize("is_making", [True, False], ids=["making", "stepping"])
def test_no_rank_outlives_a_killed_launcher(job: Job, num_ranks: int, is_making: bool):
    how = kwargs(how="hold the lock", rank=1, is_making=is_making)
    run = job.start(num_ranks, "--env-factory", "exiting_envs:Departing", *how, *SHORT)
    assert_ranks_end_with_the_launcher(job, run)


@pytest.mark.mpi(2)
def test_no_rank_of_a_trainer_outlives_a_killed_launcher(job: Job, num_ranks: int):
    code = """
import exiting_envs, mpi_rollout
with mpi_rollout.connect(lambda: exiting_envs.Departing("hold the lock", 1, is_making=True), 4) as envs:
    pass
"""
    run = job.start_script(num_ranks, code)
    assert_ranks_end_with_the_launcher(job, run)


@pytest.mark.mpi(2)
def test_a_rank_that_a_wrapper_script_started_runs_as_any_other(job: Job, num_ranks: int):
    command = job.command(num_ranks, "--env", "CartPole-v1", *SHORT)
    place = command.index("-n") + 2
    wrapped = [*command[:place], "sh", "-c", '"$@"; exit $?', "wrapper", *command[place:]]
    assert run_job(wrapped, job.folder).code == 0
