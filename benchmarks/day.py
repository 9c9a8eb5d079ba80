"""Measure whether what a job holds grows with its time: python benchmarks/day.py run|show [SECONDS].

run   each job for some seconds on two ranks: each second the memory and the open descriptors of each rank.
      Writes day.json
show  print the table of day.json
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
from measuring import MEASURED, command_of, environment, machine, main, table

DATA = MEASURED / "day.json"
MARK = "MPI_ROLLOUT_MEASURED"  # In the environment of the job's processes.
BRIEF = "--env-factory day:Brief --num-envs 64"
RUNS = {
    "CartPole, gzip, policy on the ranks": "--env CartPole-v1 --num-envs 64 --compression gzip "
    "--policy day:make_policy",
    "episodes of one step, stored": BRIEF,
    "native CartPole, not stored": "--env mpi_rollout/CartPoleNumba-v0 --num-envs 4096 --no-trajectories",
}
TRAINERS = {"connect, step by step": "step", "connect, record, resets": "reset"}


class Brief(gymnasium.Env):
    """Each step is an episode."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, True, False, {}


class Lean:
    """A policy: push to where the pole leans."""

    def act(self, observations, env_indices, uniforms):
        return (observations[:, 2] > 0).astype(np.int64)


def make_policy():
    return Lean()


def train(way: str, seconds: float) -> None:
    """Be a rank of a trainer that steps, or resets after each step, and says now and then how far it is."""
    import mpi_rollout

    is_by_resets = way == "reset"
    options = {"record": "run.h5", "autoreset_mode": "disabled"} if is_by_resets else {}
    with mpi_rollout.connect(Brief, 8, **options) as envs:
        if envs is None:
            return
        envs.reset(seed=0)
        actions, num_steps, stop = envs.action_space.sample(), 0, time.perf_counter() + seconds
        everything = {"reset_mask": np.ones(8, np.bool_)}
        while time.perf_counter() < stop:
            for _ in range(200):
                envs.step(actions)
                if is_by_resets:
                    envs.reset(options=everything)
            num_steps += 200
            Path("run.status.json").write_text(json.dumps({"num_steps": num_steps}))


def start(folder: str, num_ranks: int, *command: str) -> subprocess.Popen:
    """Start Python on some ranks."""
    variables = environment(MPI_ROLLOUT_ANY_SIZE="1", MINARI_DATASETS_PATH=f"{folder}/minari", **{MARK: folder})
    with open(f"{folder}/output", "a") as output:
        words = command_of(num_ranks, *command)
        return subprocess.Popen(words, cwd=folder, env=variables, stdout=output, stderr=output)


def processes_of(folder: str) -> dict[int, int]:
    """Return the rank of each process of a job, its children's as well, in the order of their starts."""
    found: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        ranks = [word.split("=")[1] for word in words if word.startswith(("OMPI_COMM_WORLD_RANK=", "PMI_RANK="))]
        if f"{MARK}={folder}" in words and ranks:
            found[int(place.name)] = int(ranks[0])
    return dict(sorted(found.items()))


def memory_mb(process: int) -> float:
    """Return what a process has now."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def watch(job: subprocess.Popen, folder: str, most: int) -> list[dict]:
    """Look at both ranks of a job each second until it ends; stop it after so many looks."""
    samples: list[dict] = []
    ranks: dict[int, int] = {}
    while job.poll() is None:
        time.sleep(1.0)
        try:
            if len(ranks) < 2:
                ranks = {rank: number for number, rank in reversed(processes_of(folder).items())}
            numbers = [ranks[0], ranks[1]]
            with open(f"{folder}/run.status.json") as file:
                num_steps = json.load(file)["num_steps"]
            memory = [memory_mb(number) for number in numbers]
            descriptors = [len(os.listdir(f"/proc/{number}/fd")) for number in numbers]
        except (OSError, IndexError, ValueError, KeyError):  # It begins, or ends.
            continue
        now = {"time_s": time.perf_counter(), "num_steps": num_steps}
        samples.append(now | {"memory_mb": memory, "descriptors": descriptors})
        if len(samples) == most:
            os.kill(ranks[0], signal.SIGTERM)
    return samples


def measure_job(name: str, seconds: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        if name in RUNS:
            command = f"-m mpi_rollout {RUNS[name]} --num-steps 1000000000 --progress none --out run.h5"
            job, most = start(folder, 2, *command.split()), seconds
        else:
            job, most = start(folder, 2, __file__, "train", TRAINERS[name], str(seconds)), sys.maxsize
        samples = watch(job, folder, most)
        if job.returncode not in (0, 75) or len(samples) < 8:
            sys.exit(f"{name}: {Path(folder, 'output').read_text()}")
        said = re.search(r"step (\d+): stopped", Path(folder, "output").read_text())
    return {"samples": samples, "num_steps": int(said[1]) if said else samples[-1]["num_steps"]}


def quarters(values: list[float]) -> tuple[float, float]:
    """Return the medians of the second and of the last quarter."""
    part = len(values) // 4
    return statistics.median(values[part : 2 * part]), statistics.median(values[-part:])


def cells(name: str, job: dict) -> tuple[str, ...]:
    samples = job["samples"]
    memory = ("{:.1f}, {:.1f}".format(*quarters([each["memory_mb"][rank] for each in samples])) for rank in (0, 1))
    descriptors = "{:.0f}, {:.0f}".format(*quarters([sum(each["descriptors"]) for each in samples]))
    seconds = samples[-1]["time_s"] - samples[0]["time_s"]
    return name, f"{seconds:.0f}", f"{job['num_steps']:,}", *memory, descriptors


def measure(seconds: int = 120) -> None:
    found = {"machine": machine(), "jobs": {name: measure_job(name, seconds) for name in (*RUNS, *TRAINERS)}}
    DATA.write_text(json.dumps(found) + "\n")


def show() -> None:
    head = "job", "seconds", "steps of each env", "root, MB", "worker, MB", "descriptors of both"
    table(head, (cells(name, job) for name, job in json.loads(DATA.read_text())["jobs"].items()))


if __name__ == "__main__":
    main(__doc__, {"run": measure, "show": show}, {"train": train})
