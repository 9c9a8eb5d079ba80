"""Measure what shards give on one machine: python benchmarks/shards.py measure [ROUNDS] | ranks.

`measure`: env steps per second of runs that are stored, on two ranks: one file, and two shards as if each rank were a
node, over the same run unstored in the same round.  `ranks`: what rank 0 does and holds on four such nodes, as the
number of ranks grows.
"""

import json
import os
import resource
import sys
import tempfile
from functools import partial

from gymnasium import Env, spaces
from measuring import ROUNDS, main, python, ratios, spread, table, turns

from mpi_rollout.cli import main as command
from mpi_rollout.collect.team import NODES_VARIABLE
from mpi_rollout.drive.driver import Driver

CASES = {
    "8 envs of 1 MB that do nothing": f"--env-factory {__file__}:Megabytes --num-envs 8 --num-steps 60",
    "64 CartPoles": "--env CartPole-v1 --num-envs 64 --num-steps 12000",
}
WAYS = {"unstored": "--no-trajectories", "one file": "", "two shards": "--storage sharded"}
NUM_NODES, RANKS = 4, (4, 16, 64, 128)


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


def job(*words: str) -> None:
    """Do a run; rank 0 also prints its memory and how many fragments it ordered; a part of `ranks`."""
    num_sent, send = 0, Driver.send

    def counted(*arguments: object, **more: object) -> None:
        nonlocal num_sent
        num_sent += 1
        send(*arguments, **more)

    Driver.send = counted
    code = command([*words])
    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "0":
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"peak_mb": peak_mb, "num_sent": num_sent}))
    sys.exit(code)


def told(num_ranks: int, num_nodes: int, options: str, *before: str) -> list[dict]:
    os.environ[NODES_VARIABLE] = str(num_nodes)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        words = *options.split(), "--progress", "none", "--json", "--out", f"{folder}/run.h5"
        lines = python(num_ranks, *before, *words).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def rate(case: str, way: str) -> float:
    return float(told(2, 2, f"{CASES[case]} {WAYS[way]}", "-m", "mpi_rollout")[-1]["env_steps_per_s"])


def measure(rounds: int = ROUNDS) -> None:
    def rows() -> object:
        for case in CASES:
            taken = turns({way: partial(rate, case, way) for way in WAYS}, rounds)
            bare, one = taken["unstored"], taken["one file"]
            of_bare = (spread(ratios(taken[way], bare), ".2f") for way in ("one file", "two shards"))
            yield case, spread(bare, ",.0f"), *of_bare, spread(ratios(taken["two shards"], one), ".2f")

    table(("what", "env steps/s unstored", "one file, of that", "two shards, of that", "shards over one file"), rows())


def ranks() -> None:
    def rows() -> object:
        for num_ranks in RANKS:
            run = f"--env CartPole-v1 --num-envs {16 * num_ranks} --num-steps 512 --fragment-length 64"
            for way in ("one file", "two shards"):
                figures = told(num_ranks, NUM_NODES, f"{run} {WAYS[way]}", __file__, "job")
                of_root = next(each for each in figures if "peak_mb" in each)
                yield num_ranks, way.replace("two", "four"), f"{of_root['peak_mb']:.0f}", of_root["num_sent"]

    table(("ranks", "stored in", "rank 0, peak MB", "fragments that it ordered"), rows())


if __name__ == "__main__":
    main(__doc__, {"measure": measure, "ranks": ranks}, {"job": job})
