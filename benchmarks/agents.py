"""Measure runs of an env with several agents against bare loops over `parallel_env.step` on as many cores at once.

python benchmarks/agents.py measure [ROUNDS [NUM_STEPS]]    64 times rock, paper, scissors of PettingZoo, two ranks
"""

from statistics import median
from time import perf_counter

import numpy as np
from measuring import main, python, ratios, run, spread, table, turns
from mpi4py import MPI
from pettingzoo.classic import rps_v2

NUM_RANKS, NUM_ENVS = 2, 64
ENV = f"--env-factory pettingzoo.classic.rps_v2:parallel_env --num-envs {NUM_ENVS}"


def bare(num_steps: int) -> None:
    """Step this rank's envs one after the other, with actions drawn before; rank 0 prints the env steps per second."""
    comm = MPI.COMM_WORLD
    envs = [rps_v2.parallel_env() for _ in range(NUM_ENVS // comm.size)]
    drawn = np.random.default_rng(comm.rank).integers(0, 3, (num_steps, len(envs), 2))
    actions = [[list(row) for row in of_step] for of_step in drawn]  # NumPy's integers, as a space's sample is one.
    for env in envs:
        env.reset()
    comm.Barrier()
    start, taken = perf_counter(), 0
    for of_step in actions:
        for env, (first, second) in zip(envs, of_step, strict=True):
            if env.agents:
                env.step({"player_0": first, "player_1": second})
                taken += 1
            else:
                env.reset()
    rate = comm.reduce(taken / (perf_counter() - start))
    if comm.rank == 0:
        print(rate)


def measure(rounds: int = 5, num_steps: int = 400) -> None:
    """Take all ways in turn; print the medians, and the shares of the bare loops."""
    size = f"{ENV} --num-steps {num_steps}"
    ways = {
        "bare loops": lambda: float(python(NUM_RANKS, __file__, "bare", num_steps)),
        "a run, not stored": lambda: run(NUM_RANKS, f"{size} --no-trajectories")["env_steps_per_s"],
        "a run, stored": lambda: run(NUM_RANKS, size)["env_steps_per_s"],
    }
    rates = turns(ways, rounds)
    rows = [(name, f"{median(of):,.0f}", spread(ratios(of, rates["bare loops"]))) for name, of in rates.items()]
    table(["64 envs of two agents, two ranks", "env steps/s", "of bare loops"], rows)


if __name__ == "__main__":
    main(__doc__, {"measure": measure}, {"bare": bare})
