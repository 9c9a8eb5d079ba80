"""Measure how long a job that was stopped in time is away: python results/measured/measure_requeue.py [ROUNDS].

Each round submits collect.sbatch to a SLURM of two virtual nodes on this machine (tests/helpers/slurm_cluster.py,
which needs root), tells it to stop as SLURM does before a time limit, and takes from slurmctld's log and from the run
itself:

stop   from the signal until the job has put itself back into the queue: the run has ended with all steps committed
SLURM  from there until SLURM starts it again: SLURM's own delay, here with the least `cred_expire` there is
go on  from there until the first new step is done: site file, choice of the launcher, imports, running episodes
"""

import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from measure import machine, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from jobs import CLONE, HELPERS
from slurm_cluster import Cluster, cluster, missing
from submissions import VENVS, Submissions

# When it is asked for the second actions, the first new step of this start is done.
POLICY = """
import os, time
from stopping_envs import counting
def stamping(observations):
    if counting.calls == 1:
        with open("stepped." + os.environ.get("SLURM_RESTART_COUNT", "0"), "w") as file:
            file.write(str(time.time()))
    return counting(observations)
"""
ENV = ("--env-factory", "stopping_envs:Paced", "--num-envs", "6", "--policy", "policy:stamping")
RUN = (*ENV, "--num-steps", "1000", "--progress", "none", "--out", "run.h5")
OPTIONS = ("--ntasks=2", "--nodes=2")
PACED_AT_FIRST = '[ -n "${SLURM_RESTART_COUNT:-}" ] || export PACE_S=0.005\n'
PARTS = ("stop", "SLURM", "go on")


def moments(slurm: Cluster, what: str, number: str) -> list[float]:
    """When slurmctld wrote that something was done with a job, in seconds since 1970."""
    log = (slurm.folder / "slurmctld.log").read_text()
    found = re.findall(rf"^\[(\S+)\] .*{what} JobId={number}\b", log, re.MULTILINE)
    return [datetime.fromisoformat(each).timestamp() for each in found]


def requeue(slurm: Cluster, mpi: str) -> list[float]:
    """Do a run that is stopped once; return how long each of PARTS took, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "policy.py").write_text(POLICY)
        submit = Submissions(slurm, Path(folder), mpi)
        path = f"{folder}:{CLONE}:{HELPERS}"
        number = submit.start(*RUN, site=PACED_AT_FIRST, options=OPTIONS, PYTHONPATH=path)
        told = time.time()
        slurm.run("scancel", "--batch", "--signal=USR1", number)
        job = slurm.finish(number, 120.0)
        if (job["JobState"], job["Restarts"]) != ("COMPLETED", "1"):
            sys.exit(submit.log)
        stepped = float((Path(folder) / "stepped.1").read_text())
    [put_back] = moments(slurm, "Requeuing", number)
    _, started = moments(slurm, "(?:Allocate|Started)", number)  # By the scheduler or the backfill scheduler.
    return [put_back - told, started - put_back, stepped - started]


def main(rounds: int) -> None:
    print(f"{machine()}: 2 ranks on 2 virtual nodes, {rounds} rounds; seconds, median (range)\n")
    print(f"| MPI | {' | '.join(PARTS)} |\n|---|{'---|' * len(PARTS)}")
    with cluster() as slurm:
        for mpi in VENVS:
            found = [requeue(slurm, mpi) for _ in range(rounds)]
            columns = [spread([*each], ".1f") for each in zip(*found, strict=True)]
            print(f"| {mpi} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    if missing():
        sys.exit(missing())
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
