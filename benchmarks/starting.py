"""Measure how soon a run starts, and what `launch` costs: python benchmarks/starting.py start|launched.

start     seconds of a whole run, and a rank's memory before its envs
launched  a step of 64 CartPoles through `launch` beside `connect`; of 250 batches of 64 steps the fifth quickest counts
"""

import time
from collections.abc import Iterator
from functools import partial
from operator import sub
from statistics import median
from typing import Any

from measuring import main, python, run, spread, table, turns

MEMORY = """
import mpi_rollout.collect.run
from mpi4py import MPI
pages = int(open("/proc/self/statm").read().split()[1])
if MPI.COMM_WORLD.rank:
    print(pages * 4096 / 1e6)
"""

STEPS = """
import functools, sys, time, numpy as np, mpi_rollout
num_ranks = int(sys.argv[1])
actions = np.random.default_rng(0).integers(0, 2, (64, 64))
batches = []
give = functools.partial(mpi_rollout.launch, num_ranks=num_ranks) if num_ranks else mpi_rollout.connect
with give("CartPole-v1", 64) as envs:
    if envs is not None:
        envs.reset(seed=1)
        for _ in range(250):
            start = time.perf_counter()
            for row in actions:
                envs.step(row)
            batches.append((time.perf_counter() - start) / len(actions))
        print(1e6 * sorted(batches)[4])
"""


def step_us(launcher_ranks: int, num_ranks: int) -> float:
    return float(python(launcher_ranks, "-c", STEPS, num_ranks))


def step_rows() -> Iterator[tuple[object, ...]]:
    for num_ranks in (1, 2):
        ways = {"connect": partial(step_us, num_ranks, 0), "launch": partial(step_us, 0, num_ranks)}
        taken = turns(ways, 9)
        more = spread(map(sub, taken["launch"], taken["connect"]), ".1f")
        yield num_ranks, *(f"{median(some):.1f}" for some in taken.values()), more


def launched() -> None:
    table(("ranks", "connect, us", "launch, us", "more, us"), step_rows())


def start(rounds: int = 5) -> None:
    def seconds(of: Any) -> float:
        begun = time.perf_counter()
        of()
        return time.perf_counter() - begun

    bare = [seconds(lambda: python(2, "-c", "from mpi4py import MPI")) for _ in range(rounds)]
    ours = [seconds(lambda: run(2, "--env CartPole-v1 --num-steps 1")) for _ in range(rounds)]
    memory = [float(python(2, "-c", MEMORY)) for _ in range(rounds)]
    over = spread((a - b for a, b in zip(ours, bare, strict=True)), ".2f")
    rows = (
        ("from mpirun to its end, for a bare import of mpi4py", f"{spread(bare, '.2f')} s"),
        ("the same, for a run that stores one step of 64 CartPoles: what it takes more", f"{over} s"),
        ("resident memory of a worker rank before its envs", f"{spread(memory, '.0f')} MB"),
    )
    table(("what", "median (range)"), rows)


if __name__ == "__main__":
    main(__doc__, {"start": start, "launched": launched})
