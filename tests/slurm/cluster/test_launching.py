"""`mpi_rollout.launch` on a cluster: from a login node by sbatch, and from a job's script by srun."""

import signal
import subprocess

from jobs import CLONE, HELPERS
from slurm_cluster import TIMEOUT_S
from submissions import VENVS, Submissions, one_mpi

PLUGIN = {"Open MPI": "pmix", "MPICH": "pmi2"}
TRAINER = """
import mpi_rollout

def make():
    import gymnasium, os
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.host = os.uname().nodename
    return env

with mpi_rollout.launch(make, 6, num_ranks=3, launcher="srun --mpi={plugin}"{more}) as envs:
    envs.reset(seed=1)
    print(sum(envs.step(envs.action_space.sample())[1].sum() for _ in range(9)), *sorted({{*envs.get_attr("host")}}))
"""


def start(submit: Submissions, more: str) -> subprocess.Popen:
    """Start a trainer on what stands for a login node."""
    (submit.folder / "trainer.py").write_text(TRAINER.format(plugin=PLUGIN[submit.mpi], more=more))
    variables = submit.slurm.environment | {"PYTHONPATH": f"{CLONE}:{HELPERS}", "OMPI_MCA_mpi_yield_when_idle": "1"}
    command = [VENVS[submit.mpi] / "bin" / "python", "trainer.py"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=submit.folder, env=variables, stdout=pipe, stderr=pipe, text=True)


def test_a_trainer_on_a_login_node_has_the_ranks_of_a_job(submit):
    out, err = start(submit, ", sbatch={'nodes': 2}").communicate(timeout=TIMEOUT_S)
    assert out == "54.0 node1 node2\n", err
    assert "submits a job of 3 ranks, and waits for it" in err and "Submitted batch job" in err
    assert [*submit.folder.glob(".mpi_rollout-*")] == []


@one_mpi
def test_a_trainer_that_is_killed_takes_its_job_out_of_the_queue(submit):
    trainer = start(submit, ", sbatch=['--nodes=2', '--hold']")
    submit.slurm.wait_until(lambda: submit.slurm.run("squeue", "--noheader").stdout, "the job is in the queue")
    trainer.kill()
    trainer.communicate()
    submit.slurm.wait_until(lambda: not submit.slurm.run("squeue", "--noheader").stdout, "the job is cancelled")
    submit.slurm.wait_until(lambda: not [*submit.folder.glob(".mpi_rollout-*")], "the key is removed")
    assert trainer.returncode == -signal.SIGKILL and submit.slurm.run("squeue", "--noheader").stdout == ""


def test_a_trainer_in_an_allocation_starts_its_ranks_on_all_nodes(submit):
    trainer = TRAINER.format(plugin=PLUGIN[submit.mpi], more="")
    (submit.folder / "trainer.py").write_text(trainer)
    (submit.folder / "job.sh").write_text(f"#!/bin/bash\n{submit.site}python trainer.py > told\n")
    number = submit.slurm.submit(submit.folder, "--ntasks=3", "--nodes=2", "job.sh", PYTHONPATH=f"{CLONE}:{HELPERS}")
    assert submit.slurm.finish(number)["JobState"] == "COMPLETED", submit.log
    assert (submit.folder / "told").read_text() == "54.0 node1 node2\n"
