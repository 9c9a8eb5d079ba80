"""Measure what shards give on one machine: python benchmarks/shards.py measure [ROUNDS].

Env steps per second of runs that are stored, on two ranks: one file, and two shards as if each rank were a node, over
the same run unstored in the same round.
"""

import json
import os
import tempfile
from functools import partial

from gymnasium import Env, spaces
from measuring import ROUNDS, main, python, ratios, spread, table, turns

from mpi_rollout.collect.team import NODES_VARIABLE

CASES = {
    "8 envs of 1 MB that do nothing": f"--env-factory {__file__}:Megabytes --num-envs 8 --num-steps 60",
    "64 CartPoles": "--env CartPole-v1 --num-envs 64 --num-steps 12000",
}
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


if __name__ == "__main__":
    main(__doc__, {"measure": measure})
