"""Measure what shards give on one machine: python benchmarks/shards.py measure [ROUNDS], or root.

measure  env steps per second of runs that are stored, on two ranks: one file, and two shards as if each rank were a
         node, over the same run unstored in the same round
root     what rank 0 does for each fragment of 16 steps on 2 to 128 ranks of 4 simulated nodes (Open MPI and cc)
"""

import json
import os
import tempfile
from functools import partial
from pathlib import Path

from gymnasium import Env, spaces
from measuring import CHECKOUT, QUIET, ROUNDS, compiled, main, python, ratios, spread, table, turns

from mpi_rollout.collect.team import NODES_VARIABLE

CASES = {
    "8 envs of 1 MB that do nothing": f"--env-factory {__file__}:Megabytes --num-envs 8 --num-steps 60",
    "64 CartPoles": "--env CartPole-v1 --num-envs 64 --num-steps 12000",
}
LENGTH, FEW, MANY = 16, 4, 24
WAYS = {"unstored": "--no-trajectories", "one file": "", "two shards": "--storage sharded"}


class Megabytes(Env):
    """Observes a megabyte that it does not touch."""

    observation_space = spaces.Box(0, 255, (1024, 1024), "u1")
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.integers(0, 255, (1024, 1024), "u1")
        return self.seen, {}

    def step(self, action):
        return self.seen, 0.0, False, False, {}


def rate(case: str, way: str) -> float:
    os.environ[NODES_VARIABLE] = "2"
    with tempfile.TemporaryDirectory(dir=".") as folder:
        words = *f"{CASES[case]} {WAYS[way]}".split(), "--progress", "none", "--json", "--out", f"{folder}/run.h5"
        told = python(2, "-m", "mpi_rollout", *words)
    return float(json.loads(told.splitlines()[-1])["env_steps_per_s"])


def measure(rounds: int = ROUNDS) -> None:
    def rows() -> object:
        for case in CASES:
            taken = turns({way: partial(rate, case, way) for way in WAYS}, rounds)
            bare, one = taken["unstored"], taken["one file"]
            of_bare = (spread(ratios(taken[way], bare), ".2f") for way in ("one file", "two shards"))
            yield case, spread(bare, ",.0f"), *of_bare, spread(ratios(taken["two shards"], one), ".2f")

    table(("what", "env steps/s unstored", "one file, of that", "two shards, of that", "shards over one file"), rows())


def counted(num_ranks: int, way: str, num_steps: int) -> dict[str, float]:
    """Run sleeping envs; return what rank 0 has counted."""
    envs = f"--env-factory {CHECKOUT}/benchmarks/sleeping.py:SleepingEnv --env-kwargs".split()
    run = f"--num-envs {4 * num_ranks} --num-steps {num_steps} --fragment-length {LENGTH} --wait sleep {WAYS[way]}"
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(f"{folder}/network.so")
        told = {"LD_PRELOAD": library, "NETWORK_COUNTS": f"{folder}/counts", NODES_VARIABLE: "4"}
        words = [*envs, '{"step_s": 0.002}', *run.split(), *QUIET.split(), "--out", f"{folder}/run.h5"]
        python(num_ranks, "-m", "mpi_rollout", *words, **told)
        return json.loads(Path(folder, "counts").read_text())


def root() -> None:
    """A longer run less a shorter one: what both do at start and end is in neither."""

    def rows() -> object:
        for num_ranks in (2, 16, 64, 128):
            for way in ("one file", "two shards"):
                few, many = (counted(num_ranks, way, LENGTH * fragments) for fragments in (FEW, MANY))
                each = [(many[name] - few[name]) / (MANY - FEW) for name in ("messages", "calls", "looks")]
                yield num_ranks, way.removeprefix("two "), *(f"{value:.1f}" for value in each), many["peak_kb"] // 1024

    table(("ranks", "stored in", "messages", "calls that move them", "looks", "peak memory of rank 0, MiB"), rows())


if __name__ == "__main__":
    main(__doc__, {"measure": measure, "root": root})
