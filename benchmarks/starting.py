"""Measure how soon a run starts, and a rank's memory before its envs: python benchmarks/starting.py start [ROUNDS].

How close runs come to bare `env.step` loops is in the table of `bars.py`.
"""

import time
from typing import Any

from measuring import main, python, run, spread, table

MEMORY = """
import mpi_rollout.collect.run
from mpi4py import MPI
pages = int(open("/proc/self/statm").read().split()[1])
if MPI.COMM_WORLD.rank:
    print(pages * 4096 / 1e6)
"""


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
    main(__doc__, {"start": start})
