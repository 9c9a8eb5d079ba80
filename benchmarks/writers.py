"""Measure who should write a run's file: python benchmarks/writers.py measure [ROUNDS].

The collector itself between two fragments, a thread, or whoever `storage.writer` chooses.  Env steps per second of runs
of some seconds, over those of the thread in the same round.  The slow disk takes 50 ms more for each block.
"""

import json
import sys
import tempfile
import time
from functools import partial

from measuring import ROUNDS, main, python, ratios, spread, table, turns

from mpi_rollout import connect
from mpi_rollout.cli import main as command
from mpi_rollout.storage import run_file, writer

WAYS = THREAD, COLLECTOR, CHOSEN = "a thread", "the collector", "as chosen"
SLOW_S, TURN_S = 0.05, 3.0
CARTPOLES = "--env CartPole-v1 --num-envs 64 --num-steps 12000"
RECORDED = "trainer"
CASES: dict[str, tuple[int, str, float]] = {  # Ranks, options, and what the disk takes besides.
    "64 CartPoles, one process": (0, CARTPOLES, 0.0),
    "64 CartPoles, two ranks": (2, CARTPOLES, 0.0),
    "16 Breakouts, lz4, two ranks": (
        2, "--env ale_py:ALE/Breakout-v5 --num-envs 16 --num-steps 400 --no-episode-seeds --compression lz4", 0.0,
    ),
    "4,096 CartPoles of the kernel, one process": (
        0, "--env mpi_rollout/CartPoleNumba-v0 --num-envs 4096 --num-steps 1000", 0.0,
    ),
    "64 CartPoles, two ranks, a slow disk": (2, CARTPOLES, SLOW_S),
    "64 CartPoles of a trainer that is recorded, one process": (0, RECORDED, 0.0),
}  # fmt: skip


def job(way: str, slow_s: str, *words: object) -> None:
    """Do a run in which this one writes; a part of `measure`."""
    append = run_file.RunFile.append

    def slowly(*arguments: object) -> None:
        time.sleep(float(slow_s))
        append(*arguments)

    if way == COLLECTOR:
        writer.COSTLY = 1.0
    elif way == THREAD:
        writer.Writer._do = lambda self, task: self._work.put(task) or False
    if float(slow_s):
        run_file.RunFile.append = slowly
    sys.exit(record(str(words[-1])) if words[0] == RECORDED else command(list(map(str, words))))


def record(out: str) -> None:
    """Step envs that are recorded, and print how fast."""
    with connect("CartPole-v1", 64, record=out) as envs:
        envs.reset(seed=1)
        actions, start, num_steps = envs.action_space.sample(), time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < TURN_S:
            envs.step(actions)
            num_steps += 64
    print(json.dumps({"env_steps_per_s": num_steps / seconds}))


def rate(case: str, way: str) -> float:
    num_ranks, options, slow_s = CASES[case]
    with tempfile.TemporaryDirectory(dir=".") as folder:
        words = *options.split(), "--progress", "none", "--json", "--out", f"{folder}/run.h5"
        told = python(num_ranks, __file__, "job", way, slow_s, *words)
    return float(json.loads(told.splitlines()[-1])["env_steps_per_s"])


def measure(rounds: int = ROUNDS) -> None:
    def rows() -> object:
        for case in CASES:
            taken = turns({way: partial(rate, case, way) for way in WAYS}, rounds)
            thread = taken.pop(THREAD)
            yield case, spread(thread, ",.0f"), *(spread(ratios(each, thread), ".2f") for each in taken.values())

    table(("what", "env steps/s with a thread", *(f"{way}, of that" for way in WAYS[1:])), rows())


if __name__ == "__main__":
    main(__doc__, {"measure": measure}, {"job": job})
