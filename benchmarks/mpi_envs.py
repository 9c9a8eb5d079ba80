"""Envs that are MPI programs: their rate in a run, over that of the solver's own loop without this program.

    python benchmarks/mpi_envs.py computing [ROUNDS]    one env, on one and on two ranks, which compute 20 ms in all
    python benchmarks/mpi_envs.py sleeping [ROUNDS]     four envs on 1 to 8 ranks each, which sleep instead

A step of the solver ends with a sum over its ranks.  `--fragment-length 1` is the dearest way: a message for each step.
"""

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import gymnasium
import numpy as np
from gymnasium import spaces
from measuring import ROUNDS, main, python, ratios, run, spread, table, turns

WORK_S, NUM_STEPS, NUM_WARM_UP = 0.02, 100, 5
SIZE, NUM_PRODUCTS = 96, 600  # Products of matrices that take 20 ms on a core of an AMD EPYC.


class Solver(gymnasium.Env):
    """Shares the work of a step among the ranks of `comm`; its episodes have no end."""

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


def bare(how: str, ranks_per_env: int) -> None:
    """Step an env on each `ranks_per_env` ranks in a loop; print the steps of all per second."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    env = Solver(comm.Split(comm.rank // ranks_per_env, comm.rank), how)
    for step in range(NUM_STEPS + NUM_WARM_UP):
        if step == NUM_WARM_UP:
            comm.Barrier()
            start = time.perf_counter()
        env.step(0)
    comm.Barrier()
    if comm.rank == 0:
        print(NUM_STEPS * comm.size // ranks_per_env / (time.perf_counter() - start))


def rate_of_loop(how: str, num_envs: int, ranks_per_env: int) -> float:
    return float(python(num_envs * ranks_per_env, __file__, "bare", how, ranks_per_env, OMP_NUM_THREADS="1"))


def rate_of_run(how: str, num_envs: int, ranks_per_env: int, more: str) -> float:
    options = f"--env-factory {__file__}:Solver --num-envs {num_envs} --num-steps {NUM_STEPS} --no-trajectories {more}"
    kwargs = ("--env-kwargs", f'{{"how": "{how}"}}', "--ranks-per-env", str(ranks_per_env))
    return run(num_envs * ranks_per_env, options, *kwargs)["env_steps_per_s"]


def measure(how: str, num_envs: int, sizes: tuple[int, ...], rounds: int) -> None:
    def rows() -> Iterator[tuple]:
        for ranks_per_env in sizes:
            case = how, num_envs, ranks_per_env
            ways = {more: partial(rate_of_run, *case, more) for more in ("", "--fragment-length 1")}
            rates = turns({"loop": partial(rate_of_loop, *case)} | ways, rounds)
            shares = [spread(ratios(rates[more], rates["loop"])) for more in ways]
            yield num_envs, ranks_per_env, f"{median(rates['loop']):,.1f}", *shares

    head = "envs", "ranks each", "own loop, env steps/s", "run over loop: median (range)", "a message for each step"
    table(head, rows())


def computing(rounds: int = ROUNDS) -> None:
    measure("computing", 1, (1, 2), rounds)


def sleeping(rounds: int = ROUNDS) -> None:
    measure("sleeping", 4, (1, 2, 4, 8), rounds)


if __name__ == "__main__":
    main(__doc__, {"computing": computing, "sleeping": sleeping}, {"bare": bare})
