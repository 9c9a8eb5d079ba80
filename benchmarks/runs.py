"""Measure runs with one option or another: python benchmarks/runs.py WHAT [ROUNDS].

waits        how ranks wait: 64 ranks of envs that sleep; cores of their own; beside two busy processes
shards       what is stored in one file, or in two as if each of two ranks were a node
compression  what is stored as it is, by gzip and by lz4
limit        how close runs of several agents, and of envs that are MPI programs, come to bare loops in the same run
lengths      the same for the steps between two exchanges, also beside two busy processes
actions      who draws random actions: the ranks, or rank 0, which sends them; the more envs, the more bytes

The ways take turns; each is compared with the first one of its line in the same round.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from measuring import CHECKOUT, ROUNDS, busy, main, ratios, run, spread, table, turns

from mpi_rollout.collect.team import NODES_VARIABLE

SLEEPING = f"--env-factory {CHECKOUT}/benchmarks/sleeping.py:SleepingEnv --env-kwargs"
MEGABYTES = f'{SLEEPING} {{"step_s":0,"observation_bytes":1000000}} --num-envs 8 --num-steps 60'
CARTPOLES, ACROBOTS = "--env CartPole-v1 --num-envs 64 --num-steps", "--env Acrobot-v1 --num-envs 64 --num-steps"
UNSTORED, LIMIT = "--no-trajectories", "--measure-limit --limit-s 0.5"
PLAYERS = "--num-envs 64 --vectorization-mode envpool --env"
KERNELS = "--vectorization-mode vector_entry_point --env mpi_rollout.envs.kernels:mpi_rollout/CartPoleNumba-v0"
SOLVER = f"--env-factory {__file__}:Solver --num-steps 100 --env-kwargs"
WORK_S, SIZE, NUM_PRODUCTS = 0.02, 96, 600  # Products of matrices that take 20 ms on a core of an AMD EPYC.


class Case(NamedTuple):
    """Runs that differ in the options of a way."""

    num_ranks: int
    options: str
    num_busy: int = 0


WAYS = {  # Words of options by measure: the first way is what the others are compared with.
    "waits": [f"--wait {wait} {UNSTORED}" for wait in ("spin", "sleep", "auto")],
    "shards": [UNSTORED, "", "--storage sharded"],
    "compression": [UNSTORED, "--compression none", "--compression gzip", "--compression lz4"],
    "limit": [f"{LIMIT} {UNSTORED}", LIMIT, f"{LIMIT} {UNSTORED} --fragment-length 1"],
    "lengths": [f"{LIMIT} --fragment-length {length}" for length in (1, 4, 16, 64, 256)],
    "actions": ["--policy-on workers", "--policy-on root"],
}
CASES = {
    "waits": [
        Case(64, f'{SLEEPING} {{"step_s":0.005}} --num-envs 256 --num-steps 150'),
        *(Case(num_ranks, f"{CARTPOLES} 10000") for num_ranks in (2, 4)),
        *(Case(2, f"{options} {num_steps}", 2) for options, num_steps in ((CARTPOLES, 1000), (ACROBOTS, 200))),
    ],
    "shards": [Case(2, MEGABYTES), Case(2, f"{CARTPOLES} 12000")],
    "compression": [
        Case(2, "--env ale_py:ALE/Breakout-v5 --num-envs 16 --num-steps 400 --wait sleep"),
        Case(2, "--env HumanoidStandup-v5 --num-envs 64 --num-steps 1000"),
        Case(2, f"{CARTPOLES} 30000"),
    ],
    "limit": [
        Case(2, "--env-factory pettingzoo.classic.rps_v2:parallel_env --num-envs 64 --num-steps 600"),
        *(Case(2, f"{PLAYERS} {words}") for words in (
            "TicTacToe-v1 --num-steps 8000", "IntersectionMultiAgent-v0 --num-steps 200",
        )),
        Case(2, f'{SOLVER} {{"how":"computing"}} --num-envs 1 --ranks-per-env 2'),
        *(Case(4 * num_ranks, f'{SOLVER} {{"how":"sleeping"}} --num-envs 4 --ranks-per-env {num_ranks}')
          for num_ranks in (1, 2, 4, 8)),
    ],
    "lengths": [Case(2, f"{CARTPOLES} 20000"), Case(2, f"{CARTPOLES} 2000", 2)],
    "actions": [
        *(Case(2, f"{CARTPOLES} 12000 {stored}") for stored in (UNSTORED, "")),
        *(Case(2, f"{KERNELS} {UNSTORED} --num-envs {num_envs} --num-steps {2**25 // num_envs}")
          for num_envs in (64, 1024, 16384)),
    ],
}  # fmt: skip


class Solver(gymnasium.Env):
    """An MPI program that shares the work of a step among its ranks, and ends it with a sum over them."""

    observation_space = spaces.Box(0, 1e9, (4,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, comm, how: str):
        self.comm, self.how = comm, how
        self.matrix = np.random.default_rng(0).random((SIZE, SIZE)) / SIZE
        self.part, self.whole = np.zeros(4), np.zeros(4)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.whole.copy(), {}

    def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.how == "sleeping":
            time.sleep(WORK_S / self.comm.size)
        else:
            for _ in range(NUM_PRODUCTS // self.comm.size):
                self.matrix @ self.matrix
        self.comm.Allreduce(self.part, self.whole)
        return self.whole.copy(), 0.0, False, False, {}


def rows_of(case: Case, ways: list[str], rounds: int, variables: Mapping[str, str]) -> Iterator[tuple[object, ...]]:
    """Measure one case in all ways; a row for each."""
    with busy(case.num_busy):
        told = turns({way: partial(run, case.num_ranks, f"{case.options} {way}", **variables) for way in ways}, rounds)
    rates = {way: [summary["env_steps_per_s"] for summary in summaries] for way, summaries in told.items()}
    for way, of_way in rates.items():
        size = f"{told[way][0]['file_bytes'] / 1e6:,.1f} MB"
        over = spread(ratios(of_way, rates[ways[0]]), ".2f")
        shares = [summary["ratio_to_limit"] for summary in told[way] if summary["ratio_to_limit"]]
        of_limit = spread(shares, ".2f") if shares else "-"
        yield case.num_ranks, case.options, case.num_busy, way, spread(of_way, ",.0f"), over, of_limit, size


def measure(what: str, rounds: int = ROUNDS) -> None:
    variables = {NODES_VARIABLE: "2"} if what == "shards" else {}
    rows = (row for case in CASES[what] for row in rows_of(case, WAYS[what], rounds, variables))
    table(("ranks", "run", "busy processes", "way", "env steps/s", "over the first way", "of the limit", "file"), rows)


if __name__ == "__main__":
    main(__doc__, {what: partial(measure, what) for what in CASES})
