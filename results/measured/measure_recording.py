"""Measure what it costs to record a trainer: python results/measured/measure_recording.py cost|minari [ROUNDS [ENV]].

cost    envs of `connect` with and without `record`, in turns in the same processes: in lockstep and by `collect(64)`
minari  CartPole-v1 into a file, everything on one core: Minari's DataCollector, this program's `run`, and `connect`
        with `record`, from the first reset until the complete file has its name

Where one process does all, its processor time counts, with that of the thread that writes: what other work of the
machine takes is not in it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from measure import machine, mpirun, spread

TURN_S = 2.0
COSTS = (("CartPole-v1", 1), ("CartPole-v1", 2), ("Ant-v5", 1), ("Ant-v5", 2), ("HumanoidStandup-v5", 2))

# On several ranks, which wait for each other, the fifth quickest of pieces of 64 steps counts, and to it is added the
# processor time of the thread that writes, as if it had no core of its own.
COST = """
import json, sys, time
import mpi_rollout
env, mode, way, num_rounds, turn_s, folder = sys.argv[1:7]
num_ranks = int(sys.argv[7])

def turn(record):
    with mpi_rollout.connect(env, 64, autoreset_mode=mode, record=record) as envs:
        if envs is None:
            return
        envs.reset(seed=1)
        envs.action_space.seed(1)
        actions = [envs.action_space.sample() for _ in range(64)]
        def some():
            if way == "collect":
                envs.collect(64)
            else:
                for action in actions:
                    envs.step(action)
        some()
        start, pieces, cpu = time.perf_counter(), [], time.process_time()
        others = cpu - time.thread_time()
        while len(pieces) < 6 or time.perf_counter() < start + float(turn_s):
            before = time.perf_counter()
            some()
            pieces.append(time.perf_counter() - before)
        others, cpu = time.process_time() - time.thread_time() - others, time.process_time() - cpu
        writer_s = others / len(pieces) / 64 if record else 0.0
        own_s = sorted(pieces)[4] / 64 if num_ranks > 1 else cpu / len(pieces) / 64 - writer_s
        start = time.perf_counter()
        envs.close()
        closing_s = time.perf_counter() - start
        turns.append((own_s, writer_s, closing_s))

turns = []
for number in range(int(num_rounds)):
    for record in [None, f"{folder}/{number}.h5"][:: 1 if number % 2 else -1]:
        turn(record)
if turns:
    print(json.dumps(turns))
"""

MINARI = """
import sys, time, warnings
warnings.filterwarnings("ignore")
import gymnasium, minari, numpy as np
num_steps = int(sys.argv[1])
rng = np.random.default_rng(0)
env = minari.DataCollector(gymnasium.make("CartPole-v1"))
actions = rng.integers(0, 2, num_steps)
start = time.process_time()
env.reset(seed=0)
for action in actions:
    _, _, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        env.reset()
env.create_dataset(dataset_id="cartpole/random-v0", algorithm_name="random", description="x", code_permalink="x",
                   author="x", author_email="x")
print(num_steps / (time.process_time() - start))
"""

RUN = """
import contextlib, io, sys, time
from mpi_rollout.cli import main
import h5py, gymnasium.envs.classic_control, mpi_rollout.storage.writer, mpi_rollout.collect.run
num_steps = int(sys.argv[1])
start = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    code = main(f"--env CartPole-v1 --num-envs 64 --num-steps {num_steps // 64} --out run.h5 --progress none".split())
assert code == 0
print(num_steps / (time.process_time() - start))
"""

CONNECT = """
import sys, time
import numpy as np
import h5py, gymnasium.envs.classic_control, mpi_rollout, mpi_rollout.train.recorder
num_steps, way = int(sys.argv[1]), sys.argv[2]
envs = mpi_rollout.connect("CartPole-v1", 64, record="run.h5")
actions = np.random.default_rng(0).integers(0, 2, (num_steps // 64, 64))
start = time.process_time()
envs.reset(seed=0)
if way == "collect":
    for first in range(0, len(actions), 64):
        envs.collect(64, actions[first : first + 64])
else:
    for action in actions:
        envs.step(action)
envs.close()
print(num_steps / (time.process_time() - start))
"""
RECORDERS = (
    ("Minari's DataCollector, 1 env", MINARI, 20_000, ()),
    ("mpi_rollout run, 64 envs", RUN, 64 * 20_000, ()),
    ("connect(record=), 64 envs, step", CONNECT, 64 * 12_800, ("step",)),
    ("connect(record=), 64 envs, collect(64)", CONNECT, 64 * 12_800, ("collect",)),
)


def measure_cost(rounds: int, only: str = "") -> None:
    """With `record` over without, turn by turn."""
    print(f"\n{machine()}: 64 envs, {rounds} rounds of {TURN_S:g} s each\n")
    print(
        "| env | ranks | autoreset | by | a step without | writer | rate with over without: median (range) | closing |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for env, num_ranks in [cost for cost in COSTS if only in cost[0]]:
        for mode, way in (("next_step", "step"), ("same_step", "step"), ("next_step", "collect")):
            with tempfile.TemporaryDirectory() as folder:
                arguments = (env, mode, way, str(rounds), str(TURN_S), folder, str(num_ranks))
                taken = json.loads(mpirun(num_ranks, "-c", COST, *arguments).splitlines()[-1])
            pairs = [taken[place : place + 2][:: 1 if place // 2 % 2 else -1] for place in range(0, len(taken), 2)]
            ratios = spread([plain[0] / (recorded[0] + recorded[1]) for plain, recorded in pairs])
            plain, writer, closing = (
                statistics.median(column)
                for column in (
                    [plain[0] for plain, _ in pairs],
                    [recorded[1] for _, recorded in pairs],
                    [recorded[2] for _, recorded in pairs],
                )
            )
            cells = (env, num_ranks, mode, way, f"{1e6 * plain:,.0f} us", f"{1e6 * writer:.1f} us", ratios)
            print("| " + " | ".join(map(str, cells)) + f" | {closing:.2f} s |", flush=True)


def measure_minari(rounds: int) -> None:
    """Env steps per second of processor time of each recorder, in turns, on one core."""
    core = min(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {name: [] for name, *_ in RECORDERS}
    for _ in range(rounds):
        for name, program, num_steps, arguments in RECORDERS:
            with tempfile.TemporaryDirectory() as folder:
                command = ["taskset", "-c", str(core), sys.executable, "-c", program, str(num_steps), *arguments]
                environment = os.environ | {"MINARI_DATASETS_PATH": f"{folder}/minari", "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name}: {done.stdout}{done.stderr}")
                rates[name].append(float(done.stdout.split()[-1]))
    base = rates[RECORDERS[0][0]]
    print(f"\n{machine()}, all on one core, {rounds} rounds\n")
    print("| recorder | env steps per second of processor time: median (range) | times Minari: median (range) |")
    print("|---|---|---|")
    for name, values in rates.items():
        times = [rate / other for rate, other in zip(values, base, strict=True)]
        print(f"| {name} | {spread(values, ',.0f')} | {spread(times, '.1f')} |")


if __name__ == "__main__":
    what, *numbers = sys.argv[1:] or ["--help"]
    if what == "cost":
        measure_cost(int(numbers[0]) if numbers else 5, *numbers[1:])
    elif what == "minari":
        measure_minari(*map(int, numbers or ["5"]))
    else:
        sys.exit(__doc__)
