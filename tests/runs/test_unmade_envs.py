"""Envs that cannot be made: one line says why, with every Gymnasium that is allowed."""

import pytest
from jobs import Job

pytestmark = pytest.mark.full_start

ENV = ("--env", "CartPole-v1", "--env-kwargs", '{"mass": 1}', "--num-envs", "2")
TRAINER = """
import mpi_rollout
try:
    with mpi_rollout.connect("CartPole-v1", 2, env_kwargs={"mass": 1}) as envs: ...
except mpi_rollout.RolloutError as error:
    print(error)
"""


@pytest.mark.mpi(1)
def test_a_run_says_in_one_line_that_an_env_cannot_be_made(job: Job, num_ranks: int):
    result = job(num_ranks, *ENV, "--out", "run.h5")
    assert result.code == 64 and len(result.messages) == 1, result.err
    assert result.num_tracebacks == 0 and "Exception ignored" not in result.err, result.err


@pytest.mark.mpi(1)
def test_a_trainer_catches_that_and_hears_no_more(job: Job, num_ranks: int):
    result = job.script(num_ranks, TRAINER)
    assert result.code == 0 and "mass" in result.out and result.err == "", result.err
