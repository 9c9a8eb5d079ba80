"""How a rank's process may end while a run is under way, and what becomes of processes that envs fork."""

import h5py
import pytest
from jobs import Job
from stopped_runs import HOST, OUT, kwargs

SHORT = ("--num-envs", "6", "--num-steps", "20", "--progress", "none", *OUT)
WHAT = "an env, a policy or a library called"


def departing(how: str, rank: int) -> tuple[str, ...]:
    return "--env-factory", "exiting_envs:Departing", *kwargs(how=how, rank=rank), *SHORT


@pytest.mark.full_start
@pytest.mark.mpi(2)
@pytest.mark.parametrize(("how", "rank"), [("os._exit(0)", 0), ("exit()", 1), ("MPI.Finalize()", 1)])
def test_a_call_that_would_end_a_rank_ends_the_job_with_an_error(job: Job, num_ranks: int, how: str, rank: int):
    result = job(num_ranks, *departing(how, rank))
    assert result.code == 70
    assert result.messages == [f"rank {rank} ({HOST}): {WHAT} {how} before the run was over; the job ends"]


@pytest.mark.mpi(1)
def test_a_policy_that_would_end_the_process_ends_the_job_with_an_error(job: Job, num_ranks: int):
    result = job(num_ranks, "--env-factory", "envs:Image", *SHORT, "--policy", "exiting_envs:policy")
    assert result.code == 70
    assert result.messages == [f"rank 0 ({HOST}): {WHAT} os._exit(0) before the run was over; the job ends"]


@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_processes_that_envs_fork_end_alone_with_their_own_code(job: Job, num_ranks: int):
    small = ("--num-envs", str(num_ranks), "--num-steps", "2", "--progress", "none")
    result = job(num_ranks, "--env-factory", "exiting_envs:Forking", "--no-seed-check", *small, *OUT)
    looked = job(num_ranks, "--env-factory", "exiting_envs:Forking", *small, "--out", "looked.h5")
    assert result.code == looked.code == 0, result.err + looked.err
    for name in ("run.h5", "looked.h5"):
        with h5py.File(job.folder / name) as file:
            assert file["trajectories/rewards"][...].tolist() == [[1.0] * num_ranks] * 2
    small = ("--num-envs", "1", "--num-steps", "2", "--progress", "none")
    alone = job(None, "--env-factory", "exiting_envs:Forking", "--no-seed-check", *small, "--out", "alone.h5")
    assert alone.err.count("ValueError: in the child") == alone.num_tracebacks == 2  # MPICH's launcher mixes lines.
    ended, raised = "and was ended: it is no rank; end it in the call, by os._exit()", "no rank, raised and was ended:"
    ends = [message.endswith(raised) for message in alone.messages if message.endswith((ended, raised))]
    assert len(alone.messages) == len(ends) == 4 and sum(ends) == 2, alone.err
    assert "mpi_rollout/" not in alone.err.replace(str(job.folder), ""), alone.err  # Of the stacks of children.


FORKING_TRAINER = """
import os, sys
import envs as test_envs
import mpi_rollout
def fork(error):
    pid = os.fork()
    if pid == 0:
        raise error
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
with mpi_rollout.connect(test_envs.Counting, 4) as envs:
    if envs is not None:
        envs.reset(seed=0)
        print(fork(SystemExit(3)), fork(ValueError("in the child")))
        print(len(envs.step([2] * 4)[0]))
if os.fork() == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_processes_that_a_trainer_forks_touch_no_mpi(job: Job, num_ranks: int):
    result = job.script(num_ranks, FORKING_TRAINER)
    assert result.code == 0, result.err
    # Two ranks at a time: the end of a line may come after the other's.
    assert sorted(result.out.replace("\n", "")) == sorted("3 1455")


@pytest.mark.mpi(2)
def test_a_trainer_that_ends_its_process_ends_the_job_with_an_error(job: Job, num_ranks: int):
    code = "import os, envs, mpi_rollout\nwith mpi_rollout.connect(envs.Counting, 4) as it:\n    it and os._exit(0)\n"
    result = job.script(num_ranks, code)
    assert result.code == 70
    assert result.messages == [f"rank 0 ({HOST}): {WHAT} os._exit(0) before the run was over; the job ends"]


@pytest.mark.mpi(2)
def test_a_constructor_that_would_end_a_rank_of_a_trainer_ends_the_job_with_an_error(job: Job, num_ranks: int):
    code = "import exiting_envs, mpi_rollout\n"
    code += "with mpi_rollout.connect(lambda: exiting_envs.Departing('exit()', 1, is_making=True), 4) as envs: pass\n"
    result = job.script(num_ranks, code)
    assert result.code == 70
    assert result.messages == [f"rank 1 ({HOST}): {WHAT} exit() before the run was over; the job ends"]


@pytest.mark.mpi(2)
def test_processes_that_envs_of_a_trainer_fork_when_they_are_made_end_alone(job: Job, num_ranks: int):
    code = """
import exiting_envs, envs as test_envs, mpi_rollout
class Forking(test_envs.Image):
    def __init__(self):
        super().__init__()
        self.codes = [exiting_envs.Forking.fork(self, how) for how in ("exit", "raise")]
with mpi_rollout.connect(Forking, 2) as envs:
    if envs is not None:
        print(envs.get_attr("codes"))
"""
    result = job.script(num_ranks, code)
    assert (result.code, result.out) == (0, "([True, True], [True, True])\n"), result.err


@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_a_trainer_that_has_closed_stderr_and_leaves_without_its_envs_ends_all_ranks(job: Job, num_ranks: int):
    program = """
import sys, mpi_rollout
envs = mpi_rollout.connect("CartPole-v1", 4).__enter__()
if envs is not None:
    envs.reset()
    sys.stderr.close()
"""
    result = job.script(num_ranks, program)
    assert result.code == 70 and "the trainer ended without closing its envs" in result.err


def test_an_abort_that_returns_ends_the_rank(job: Job):
    program = """
from mpi_rollout.exchange import job_end
class Comm:
    def Abort(self, code):
        print("aborted", code, flush=True)
job_end.abort(Comm(), 78)
print("went on")
"""
    result = job.script(None, program)
    assert (result.code, result.out) == (78, "aborted 78\n")
