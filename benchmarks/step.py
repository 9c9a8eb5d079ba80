"""Steps of CartPole-v1: `step.py compare BEFORE AFTER`, two checkouts; `step.py launched`, `launch` beside `connect`.

Of 250 batches of 64 steps the fifth quickest counts: what other work of the machine takes is in the others.
"""

import os
from collections.abc import Callable
from functools import partial
from operator import sub, truediv
from statistics import median

from measuring import main, python, spread, table, turns

ROUNDS = 9
PROGRAM = """
import functools, sys, time, numpy as np, mpi_rollout
num_envs, num_ranks = int(sys.argv[1]), int(sys.argv[2])
actions = np.random.default_rng(0).integers(0, 2, (64, num_envs))
batches = []
give = functools.partial(mpi_rollout.launch, num_ranks=num_ranks) if num_ranks else mpi_rollout.connect
with give("CartPole-v1", num_envs) as envs:
    if envs is not None:
        envs.reset(seed=1)
        for _ in range(250):
            start = time.perf_counter()
            for row in actions:
                envs.step(row)
            batches.append((time.perf_counter() - start) / len(actions))
        print(1e6 * sorted(batches)[4])
"""


def step_us(checkout: str, num_envs: int, launcher_ranks: int = 0, num_ranks: int = 0) -> float:
    return float(python(launcher_ranks, "-c", PROGRAM, num_envs, num_ranks, PYTHONPATH=os.path.abspath(checkout)))


def told(count: int, first: Callable, second: Callable, compared: Callable, form: str) -> tuple:
    taken = turns({"first": first, "second": second}, ROUNDS)
    return (
        count,
        *(f"{median(some):.1f}" for some in taken.values()),
        spread(map(compared, taken["second"], taken["first"]), form),
    )


def compare(before: str, after: str) -> None:
    pairs = ((num, partial(step_us, before, num), partial(step_us, after, num)) for num in (2, 64))
    table(("envs", "before, us", "after, us", "ratio"), (told(*pair, truediv, ".3f") for pair in pairs))


def launched() -> None:
    pairs = ((num, partial(step_us, ".", 64, num), partial(step_us, ".", 64, 0, num)) for num in (1, 2))
    table(("ranks", "connect, us", "launch, us", "more, us"), (told(*pair, sub, ".1f") for pair in pairs))


if __name__ == "__main__":
    main(__doc__, {"compare": compare, "launched": launched})
