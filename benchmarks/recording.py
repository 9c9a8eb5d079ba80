"""The rate of a trainer that is recorded over one that is not, for `bars.py`: 64 CartPoles of `connect`, step by step.

Both have a turn in the same processes.  Where one process does all, its processor time counts, with that of the thread
that writes: what other work of the machine takes is not in it.  On several ranks, which wait for each other, the fifth
quickest of pieces of 64 steps counts, and to it is added the processor time of the thread that writes, as if it had no
core of its own.
"""

import tempfile

from measuring import python

PROGRAM = """
import sys, time
import mpi_rollout
num_ranks, folder = int(sys.argv[1]), sys.argv[2]

def turn(record):
    with mpi_rollout.connect("CartPole-v1", 64, record=record) as envs:
        if envs is None:
            return 0.0
        envs.reset(seed=1)
        envs.action_space.seed(1)
        actions = [envs.action_space.sample() for _ in range(64)]
        def some():
            for action in actions:
                envs.step(action)
        some()
        start, pieces, cpu = time.perf_counter(), [], time.process_time()
        others = cpu - time.thread_time()
        while len(pieces) < 6 or time.perf_counter() < start + 1.0:
            before = time.perf_counter()
            some()
            pieces.append(time.perf_counter() - before)
        others, cpu = time.process_time() - time.thread_time() - others, time.process_time() - cpu
        writer_s = others / len(pieces) if record else 0.0
        return sorted(pieces)[4] + writer_s if num_ranks > 1 else cpu / len(pieces)

recorded_s, plain_s = turn(f"{folder}/run.h5"), turn(None)
if recorded_s:
    print(plain_s / recorded_s)
"""


def ratio(num_ranks: int) -> float:
    """The rate with `record` over that without."""
    with tempfile.TemporaryDirectory() as folder:
        return float(python(num_ranks, "-c", PROGRAM, num_ranks, folder).splitlines()[-1])
