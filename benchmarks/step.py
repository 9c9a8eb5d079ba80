"""What a step through `connect` takes in two checkouts of this program: python benchmarks/step.py compare BEFORE AFTER.

One process, CartPole-v1.  Of 250 batches of 64 steps the fifth quickest counts: what other work of the machine takes
is in the others.
"""

import os
from functools import partial
from statistics import median

from measuring import main, python, ratios, spread, table, turns

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
    return float(python(0, "-c", PROGRAM, num_envs, PYTHONPATH=os.path.abspath(checkout)))


def compare(before: str, after: str) -> None:
    def row(num_envs: int) -> tuple:
        taken = turns({each: partial(step_us, each, num_envs) for each in (before, after)}, ROUNDS)
        ratio = spread(ratios(taken[after], taken[before]))
        return num_envs, f"{median(taken[before]):.1f}", f"{median(taken[after]):.1f}", ratio

    table(("envs", "before, us", "after, us", "ratio"), map(row, (2, 64)))


if __name__ == "__main__":
    main(__doc__, {"compare": compare})
