"""Measure the figures of README.md beside it again: python results/measured/measure.py limit|lockstep|store|start|root.

Each prints a Markdown table with machine and date.  Ratios are taken between things that ran side by side in one
run, several times, and are given as median and range; absolute times of a shared machine drift.
"""

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

BIN = Path(sys.executable).parent
LIMITS = [
    # env, envs, steps, more options
    ("CartPole-v1", 64, 40000, ""),
    ("CartPole-v1", 64, 40000, "--no-trajectories"),
    ("CartPole-v1", 512, 5000, ""),
    ("CartPole-v1", 512, 5000, "--no-trajectories"),
    ("Acrobot-v1", 64, 8000, ""),
    ("Acrobot-v1", 64, 8000, "--no-trajectories"),
    ("HumanoidStandup-v5", 64, 600, ""),
    ("HumanoidStandup-v5", 64, 600, "--no-trajectories"),
    ("CartPole-v1", 8192, 20000, "--no-trajectories --vectorization-mode vector_entry_point"),
]


def machine() -> str:
    """One line that says where and when."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    name = model.group(1) if model else platform.machine()
    when = datetime.now(UTC).date().isoformat()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, {when}"


def mpirun(num_ranks: int, *arguments: str) -> str:
    """Run Python on some ranks; return what it prints."""
    launcher = BIN / "mpirun" if (BIN / "mpirun").exists() else Path(shutil.which("mpirun"))
    command = [str(launcher), "-n", str(num_ranks), sys.executable, *arguments]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, env=os.environ | as_root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def spread(values: list[float], form: str = ".3f") -> str:
    """Median and range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def measure_limit(*only: str) -> None:
    """How close runs come to bare env.step loops; `only` are words that a row's command must have."""
    shares = ("envs", "imbalance", "exchange", "policy", "write")
    print(f"| env | envs | options | env steps/s | of the limit: median (range) | {' | '.join(shares)} |")
    print("|---|---|---|---|---|" + "---|" * len(shares))
    for env, num_envs, num_steps, options in LIMITS:
        if not all(word in f"{env} {num_envs} {options or 'stored'}" for word in only):
            continue
        with tempfile.TemporaryDirectory(dir=".") as folder:
            command = f"-m mpi_rollout --env {env} --num-envs {num_envs} --num-steps {num_steps} {options}".split()
            command += ["--measure-limit", "--json", "--progress", "none", "--out", f"{folder}/run.h5"]
            found = json.loads(mpirun(2, *command))
        ratios = spread([rate / limit for rate, limit in found["limit"]])
        cells = [env, num_envs, options or "stored", f"{found['env_steps_per_s']:,.0f}", ratios]
        cells += [f"{100 * found['losses'][name]:.1f}%" for name in shares]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


LOCKSTEP_PROGRAM = """
import sys, time, gymnasium
from mpi4py import MPI
from mpi_rollout.core.seeding import episode_seeds
comm, num_envs = MPI.COMM_WORLD, int(sys.argv[2])
seeds = [episode_seeds(0, comm.rank * num_envs + i) for i in range(num_envs)]
envs = [gymnasium.make(sys.argv[1]) for _ in seeds]
for env, seed in zip(envs, seeds):
    env.reset(seed=next(seed))
    env.action_space.seed(0)
actions = [[env.action_space.sample() for env in envs] for _ in range(64)]
def rate(meet, seconds=1.5):
    comm.Barrier()
    start, sweeps = time.perf_counter(), 0
    while True:
        for env, seed, action in zip(envs, seeds, actions[sweeps % 64]):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset(seed=next(seed))
        sweeps += 1
        stop = time.perf_counter() - start > seconds
        if comm.allreduce(stop, MPI.LOR) if meet and sweeps % 64 == 0 else not meet and stop:
            return sweeps * num_envs / (time.perf_counter() - start)
        if meet:
            comm.Barrier()
rates = [(rate(True), rate(False)) for _ in range(6)][1:]
totals = comm.gather(rates)
if comm.rank == 0:
    for pairs in zip(*totals):
        print(sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs))
"""


def measure_lockstep() -> None:
    """What lockstep alone costs: bare loops that meet at an MPI barrier after each sweep, over ones that do not."""
    print("| env | envs | bare loops in lockstep over free ones: median (range) |\n|---|---|---|")
    for env, num_envs in (("CartPole-v1", 64), ("CartPole-v1", 512), ("Acrobot-v1", 64), ("HumanoidStandup-v5", 64)):
        out = mpirun(2, "-c", LOCKSTEP_PROGRAM, env, str(num_envs // 2))
        print(f"| {env} | {num_envs} | {spread([float(line) for line in out.split()])} |", flush=True)


def measure_store() -> None:
    """Storing alone beside plain sequential writes of the same bytes to the same disk, both with fsync at the end."""
    import numpy as np
    from gymnasium import spaces

    from mpi_rollout.config import RolloutConfig
    from mpi_rollout.core.layout import Block
    from mpi_rollout.core.spaces import describe
    from mpi_rollout.storage.run_file import Ending
    from mpi_rollout.storage.schema import rows_per_block
    from mpi_rollout.storage.writer import open_writer

    kinds = {
        "CartPole-v1, 64 envs": (spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), 64, 262144),
        "HumanoidStandup-v5, 64 envs": (spaces.Box(-1, 1, (348,), np.float64), spaces.Box(-1, 1, (17,)), 64, 4096),
        "Breakout-v5, 64 envs": (spaces.Box(0, 255, (210, 160, 3), np.uint8), spaces.Discrete(4), 64, 128),
    }
    print("| data | MB | plain writes, MB/s | Writer over plain: median (range) |")
    print("|---|---|---|---|")
    for name, (observation, action, num_envs, num_steps) in kinds.items():
        nbytes = Block.row_nbytes(observation, action, num_envs)
        num_rows = rows_per_block(nbytes, num_steps)
        blocks = [Block(observation, action, num_envs, 1, num_rows) for _ in range(3)]
        spaces_text = json.dumps({"observation": describe(observation), "action": describe(action)})
        rng = np.random.default_rng(0)
        for block in blocks:
            for array in (*block.observation_arrays, *block.action_arrays):
                array[...] = rng.integers(0, 2, array.shape)
            block.terminations[...] = rng.random(block.terminations.shape) < 0.05
        plain, ours = [], []
        for _ in range(6):
            with tempfile.TemporaryDirectory(dir=".") as folder:
                plain.append(write_plainly(f"{folder}/plain", blocks, num_steps))
                os.remove(f"{folder}/plain")
                config = RolloutConfig(env=name, num_envs=num_envs, num_steps=num_steps, out=f"{folder}/run.h5")
                attributes = {
                    "config": config.to_json(),
                    "spaces": spaces_text,
                    "seed": 0,
                    "num_envs": num_envs,
                    "hosts": '["here"]',
                    "num_ranks": 1,
                    "autoreset_mode": "NextStep",
                    "env_spec": "",
                    "mpi_library": "none",
                    "started": datetime.now(UTC).isoformat(),
                }
                writer = open_writer(config, attributes, blocks, 1)
                start = time.perf_counter()
                for first in range(0, num_steps, num_rows):
                    block = writer.acquire()
                    block.start = first
                    writer.submit(block, num_rows)
                block = writer.acquire()
                block.start = num_steps
                writer.submit(block, 0)
                writer.finish(Ending("", 0, 0.0, [rank_report()], [], True))
                ours.append(time.perf_counter() - start)
        total = nbytes * num_steps / 1e6
        ratios = [a / b for a, b in zip(plain[1:], ours[1:], strict=True)]  # The first one warms the disk up.
        print(
            f"| {name} | {total:,.0f} | {total / statistics.median(plain):,.0f} | {spread(ratios, '.2f')} |", flush=True
        )


def rank_report() -> dict:
    """What a rank reports, empty."""
    from mpi_rollout.core.clock import PHASES

    return {"rank": 0, "host": "", "num_envs": 0, "seconds": dict.fromkeys(PHASES, 0.0)}


def write_plainly(path: str, blocks: list, num_steps: int) -> float:
    """Write the blocks' arrays one after the other; return seconds."""
    start = time.perf_counter()
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    for index in range(num_steps // blocks[0].num_rows):
        for array in blocks[index % len(blocks)].named.values():
            view = memoryview(array).cast("B")
            while view:
                view = view[os.write(file, view) :]
    os.fsync(file)
    os.close(file)
    return time.perf_counter() - start


def measure_start() -> None:
    """Seconds from mpirun to the first step over the bare import of mpi4py, and memory of a rank before its envs."""
    bare, ours, memory = [], [], []
    probe = "import mpi_rollout.collect.run; from mpi4py import MPI; c = MPI.COMM_WORLD; " + (
        "pages = int(open('/proc/self/statm').read().split()[1]); c.rank and print(pages * 4096 / 1e6)"
    )
    for _ in range(5):
        start = time.perf_counter()
        mpirun(2, "-c", "from mpi4py import MPI")
        bare.append(time.perf_counter() - start)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            start = time.perf_counter()
            options = ["--env", "CartPole-v1", "--num-steps", "1", "--progress", "none", "--out", f"{folder}/run.h5"]
            mpirun(2, "-m", "mpi_rollout", *options)
            ours.append(time.perf_counter() - start)
        memory.append(float(mpirun(2, "-c", probe)))
    over = [a - b for a, b in zip(ours, bare, strict=True)]
    print("| what | median (range) |\n|---|---|")
    print(f"| from mpirun to its end, for a bare import of mpi4py | {spread(bare, '.2f')} s |")
    print(f"| the same, for a run that stores one step of 64 CartPoles: what it takes more | {spread(over, '.2f')} s |")
    print(f"| resident memory of a worker rank before its envs | {spread(memory, '.0f')} MB |")


ROOT_PROGRAM = """
import cProfile, pstats, sys
from mpi_rollout.config import RolloutConfig
from mpi_rollout.collect import root
num_envs, num_steps, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
plain = root.Root._advance
def profiled(self, collector, steps):
    profile = cProfile.Profile()
    rate = profile.runcall(plain, self, collector, steps)
    stats = pstats.Stats(profile)
    step = next(v for k, v in stats.stats.items() if k[2] == "obey")
    print(stats.total_calls / steps, (stats.total_tt - step[3]) / steps * 1e6, flush=True)
    return rate
root.Root._advance = profiled
from mpi_rollout.collect.run import run
run(RolloutConfig(env="CartPole-v1", num_envs=num_envs, num_steps=num_steps, out=out, trajectories=False,
                  dedicated_root=True, progress="none", json=True))
"""


def measure_root() -> None:
    """Function calls on the root per step (Python's and C's), from a profile, for more and more ranks and envs."""
    print("| ranks | envs | calls per step on the root |\n|---|---|---|")
    for num_ranks, num_envs in ((2, 32), (8, 32), (32, 32), (2, 512), (8, 512), (32, 512), (2, 4096)):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            program = Path(folder) / "program.py"
            program.write_text(ROOT_PROGRAM)
            out = mpirun(num_ranks, str(program), str(num_envs), "2000", f"{folder}/run.h5")
        calls, _ = map(float, out.splitlines()[0].split())
        print(f"| {num_ranks} | {num_envs} | {calls:.1f} |", flush=True)


if __name__ == "__main__":
    what, *words = sys.argv[1:] or ["--help"]
    measures = {
        "limit": measure_limit,
        "lockstep": measure_lockstep,
        "store": measure_store,
        "start": measure_start,
        "root": measure_root,
    }
    if what not in measures:
        sys.exit(__doc__)
    print(f"{machine()}: `python results/measured/measure.py {' '.join(sys.argv[1:])}`\n")
    measures[what](*words)
