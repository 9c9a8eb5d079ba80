"""What a step through `connect` takes in two checkouts of this program, in turns: `measure_step.py BEFORE AFTER`.

One process, CartPole-v1.  Of 250 batches of 64 steps the fifth quickest counts: what other work of the machine takes
is in the others.
"""

import os
import subprocess
import sys
from statistics import median

ROUNDS = 9
PROGRAM = """
import sys, time, numpy as np, mpi_rollout
num_envs = int(sys.argv[1])
actions = np.random.default_rng(0).integers(0, 2, (64, num_envs))
batches = []
with mpi_rollout.connect("CartPole-v1", num_envs) as envs:
    envs.reset(seed=1)
    for _ in range(250):
        start = time.perf_counter()
        for row in actions:
            envs.step(row)
        batches.append((time.perf_counter() - start) / len(actions))
print(1e6 * sorted(batches)[4])
"""


def step_us(checkout: str, num_envs: int) -> float:
    command = [sys.executable, "-c", PROGRAM, str(num_envs)]
    environment = os.environ | {"PYTHONPATH": checkout}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return float(done.stdout)


if __name__ == "__main__":
    before, after = map(os.path.abspath, sys.argv[1:])
    for num_envs in (2, 64):
        rounds = []
        for number in range(ROUNDS):
            order = (before, after) if number % 2 else (after, before)
            taken = {checkout: step_us(checkout, num_envs) for checkout in order}
            rounds.append((taken[before], taken[after]))
        ratios = sorted(new / old for old, new in rounds)
        old, new = (median(column) for column in zip(*rounds, strict=True))
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"{num_envs} envs: {old:.1f} us, {new:.1f} us, ratio {median(ratios):.3f} ({spread})", flush=True)
