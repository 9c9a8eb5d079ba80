"""Measure what it costs to record a trainer: python benchmarks/recording.py cost [ROUNDS [ENV]].

Envs of `connect` with and without `record`, in turns in the same processes: in lockstep and by `collect(64)`.  Where
one process does all, its processor time counts, with that of the thread that writes: what other work of the machine
takes is not in it.
"""

import json
import tempfile
from statistics import median
from typing import NamedTuple

from measuring import main, python, spread, table

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


class Pair(NamedTuple):
    """The rate with `record` over that without; seconds of a step without, of the writer, of the recording's end."""

    ratio: float
    plain_s: float
    writer_s: float
    closing_s: float


def pairs(
    env: str, num_ranks: int, mode: str = "next_step", way: str = "step", rounds: int = 5, turn_s: float = TURN_S
) -> list[Pair]:
    """Turn by turn, with `record` and without."""
    with tempfile.TemporaryDirectory() as folder:
        words = env, mode, way, rounds, turn_s, folder, num_ranks
        taken = json.loads(python(num_ranks, "-c", COST, *words).splitlines()[-1])
    both = (taken[place : place + 2][:: 1 if place // 2 % 2 else -1] for place in range(0, len(taken), 2))
    return [Pair(plain[0] / sum(recorded[:2]), plain[0], *recorded[1:]) for plain, recorded in both]


def cost(rounds: int = 5, only: str = "") -> None:
    """With `record` over without."""

    def row(env: str, num_ranks: int, mode: str, way: str) -> tuple:
        taken = pairs(env, num_ranks, mode, way, rounds)
        _, plain_s, writer_s, closing_s = map(median, zip(*taken, strict=True))
        over = spread(pair.ratio for pair in taken)
        cells = f"{1e6 * plain_s:,.0f} us", f"{1e6 * writer_s:.1f} us", over, f"{closing_s:.2f} s"
        return env, num_ranks, mode, way, *cells

    ways = ("next_step", "step"), ("same_step", "step"), ("next_step", "collect")
    head = "env", "ranks", "autoreset", "by", "a step without", "writer", "rate with over without", "closing"
    table(head, (row(*each, *way) for each in COSTS if only in each[0] for way in ways))


if __name__ == "__main__":
    main(__doc__, {"cost": cost})
