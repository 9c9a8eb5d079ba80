"""train.sbatch, submitted by sbatch: one job, or a heterogeneous one."""

import json

import pytest
from submissions import SCRIPTS, one_mpi, with_srun

SRUN_ENDED = "train.sbatch: all ranks have ended and srun has not; it is ended here"
TRAIN = """
import json, os, mpi_rollout
from mpi4py import MPI
hosts = MPI.COMM_WORLD.gather((os.uname().nodename, os.environ["OMP_NUM_THREADS"]), 0)
with mpi_rollout.connect("CartPole-v1", num_envs=6, root_envs=0) as envs:
    if envs is not None:
        envs.reset(seed=1)
        rewards = envs.step(envs.action_space.sample())[1]
        json.dump([hosts, rewards.tolist()], open("told", "w"))
"""


def test_the_ranks_of_a_heterogeneous_job_are_one_world(submit):
    (submit.folder / "my_train.py").write_text(TRAIN)
    options = ("--ntasks=1", "--cpus-per-task=2", ":", "--ntasks=3")
    state, _ = submit.run("my_train.py", options=options, script="train.sbatch")
    assert state == "COMPLETED", submit.log
    [root, *others], rewards = json.loads((submit.folder / "told").read_text())
    assert root == ["node1", "2"] and others == [["node2", "1"]] * 3
    assert rewards == [1.0] * 6


@one_mpi
def test_a_script_that_cannot_begin_starts_no_ranks(submit):
    (submit.folder / "my_train.py").write_text("import no_such_package\nraise SystemExit(3)\n")
    assert submit.run("my_train.py", script="train.sbatch") == ("FAILED", "78:0"), submit.log
    [message] = submit.messages
    assert message.startswith("train.sbatch: my_train.py imports no_such_package, which ")


@one_mpi
@pytest.mark.parametrize("ending, state", [("", "COMPLETED"), ("raise RuntimeError", "FAILED")])
def test_an_srun_that_outlives_the_ranks_of_a_heterogeneous_job_is_ended(submit, ending, state):
    """As SLURM's does at times before 24.11, under --mpi=pmix: here one that always does."""
    site = with_srun(submit.folder, 'case "$*" in *--het-group*) {srun} "$@"; sleep 1000 ;; esac')
    (submit.folder / "my_train.py").write_text(f"from mpi4py import MPI\nMPI.COMM_WORLD.barrier()\n{ending}\n")
    options = ("--ntasks=1", ":", "--ntasks=2")
    ended = submit.run("my_train.py", options=options, script="train.sbatch", site=site)
    assert ended[0] == state and (ended[1] == "0:0") == (state == "COMPLETED")
    assert submit.messages == [SRUN_ENDED]


GOING_ON = """
import signal, sys, mpi_rollout
from pathlib import Path

class Stop(Exception):
    pass

def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Stop

with mpi_rollout.connect("CartPole-v1", num_envs=6) as envs:
    if envs is not None and Path("saved").exists():
        Path("done").touch()
    elif envs is not None:
        signal.signal(signal.SIGUSR1, stop)
        try:
            envs.reset(seed=1)
            while True:
                envs.step(envs.action_space.sample())
                Path("begun").touch()
        except Stop:
            Path("saved").touch()
            sys.exit(75)
"""


def test_a_training_script_that_is_told_to_stop_saves_and_goes_on(submit):
    """Under MPICH on two nodes, under Open MPI as a heterogeneous job."""
    (submit.folder / "my_train.py").write_text(GOING_ON)
    ranks = ("--nodes=2", "--ntasks=2") if submit.mpi == "MPICH" else ("--ntasks=1", ":", "--ntasks=2")
    number = submit("my_train.py", options=("--requeue", *ranks), script="train.sbatch")
    submit.slurm.wait_until((submit.folder / "begun").exists, "it has begun")
    submit.slurm.run("scancel", "--batch", "--signal=USR1", number)
    submit.slurm.wait_until((submit.folder / "done").exists, "it has gone on")
    found = submit.slurm.finish(number)
    assert (found["JobState"], found["Restarts"]) == ("COMPLETED", "1"), submit.log
    # At times SLURM's srun of several components does not end by itself, in either start.
    told = [message for message in submit.messages if message != SRUN_ENDED]
    assert told == ["train.sbatch: the training script ended with exit code 75; back into the queue"]


@one_mpi
def test_a_start_that_has_to_end_its_srun_does_not_take_the_exit_code_of_the_start_before(submit):
    site = with_srun(submit.folder, 'case "$*" in *--het-group*) {srun} "$@"; sleep 1000 ;; esac')
    program = "import sys\nfrom pathlib import Path\nif not Path('saved').exists():\n    sys.exit(75)\n"
    (submit.folder / "my_train.py").write_text(f"from mpi4py import MPI\nMPI.COMM_WORLD.barrier()\n{program}")
    number = submit(
        "my_train.py", options=("--requeue", "--ntasks=1", ":", "--ntasks=2"), script="train.sbatch", site=site
    )
    submit.slurm.wait_until(lambda: SRUN_ENDED in submit.messages, "the first start has ended")
    (submit.folder / "saved").touch()
    found = submit.slurm.finish(number)
    assert (found["JobState"], found["Restarts"]) == ("COMPLETED", "1"), submit.log
    assert submit.messages.count(SRUN_ENDED) == 2


@one_mpi
def test_a_training_script_that_fails_on_one_rank_ends_the_job(submit):
    (submit.folder / "my_train.py").write_text(
        "from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 1:\n    raise RuntimeError('no licence')\n"
        "MPI.COMM_WORLD.barrier()\n"
    )
    state, _ = submit.run("my_train.py", script="train.sbatch")
    assert state == "FAILED" and "RuntimeError: no licence" in submit.log


def test_the_training_job_without_a_training_script_says_how_to_submit_it(slurm, tmp_path):
    number = slurm.submit(tmp_path, "--ntasks=1", str(SCRIPTS / "train.sbatch"))
    assert slurm.finish(number)["ExitCode"] == "78:0"
    assert (tmp_path / "log").read_text().count("\n") == 1
