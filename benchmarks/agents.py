"""Measure runs of envs with several agents: against bare loops over `parallel_env.step`, and against bare pools.

python benchmarks/agents.py measure [ROUNDS [NUM_STEPS]]    64 times rock, paper, scissors of PettingZoo, two ranks
python benchmarks/agents.py pools [ROUNDS]                  tasks of EnvPool with two players, against bare pools
"""

from statistics import median
from time import perf_counter

import numpy as np
from measuring import main, python, ratios, run, spread, table, turns
from mpi4py import MPI

NUM_RANKS, NUM_ENVS = 2, 64
ENV = f"--env-factory pettingzoo.classic.rps_v2:parallel_env --num-envs {NUM_ENVS}"
POOLS = {"TicTacToe-v1": 8_000, "IntersectionMultiAgent-v0": 200}  # Steps that take a second.


def bare(num_steps: int) -> None:
    """Step this rank's envs one after the other, with actions drawn before; rank 0 prints the env steps per second."""
    from pettingzoo.classic import rps_v2

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


def bare_pool(task: str, num_steps: int) -> None:
    """Step one pool with as many threads as there are ranks elsewhere; print the env steps per second."""
    import envpool

    pool = envpool.make_gymnasium(task, num_envs=NUM_ENVS, num_threads=NUM_RANKS, seed=list(range(NUM_ENVS)))
    is_game = "action" in pool.spec.action_array_spec
    env_ids = np.arange(NUM_ENVS, dtype=np.int32)
    acting = env_ids if is_game else env_ids.repeat(2)
    drawn = np.random.default_rng(0).integers(0, pool.action_space.n, (num_steps, len(acting)), np.int32)
    ids, name = {"env_id": env_ids, "players.env_id": acting}, "action" if is_game else "players.action"
    pool.reset()
    over, num_resets, start = np.zeros(NUM_ENVS, np.bool_), 0, perf_counter()
    for chosen in drawn:
        num_resets += np.count_nonzero(over)
        _, _, terminations, truncations, _ = pool.step({name: chosen, **ids})
        over = terminations | truncations
    print((num_steps * NUM_ENVS - num_resets) / (perf_counter() - start))


def pools(rounds: int = 5) -> None:
    """Print the medians of bare pools and slices that take turns, and the shares of the bare pools."""
    rows = (row for task, num_steps in POOLS.items() for row in pool_rows(task, num_steps, rounds))
    table(["64 envs of two players, two ranks or threads", "env steps/s", "of a bare pool"], rows)


def pool_rows(task: str, num_steps: int, rounds: int) -> list[tuple[str, str, str]]:
    """Measure the slices of a task, stored and not, and a bare pool."""
    size = f"--env {task} --vectorization-mode envpool --num-envs {NUM_ENVS} --num-steps {num_steps}"
    ways = {
        "a bare pool": lambda: float(python(0, __file__, "bare_pool", task, num_steps)),
        "slices, not stored": lambda: run(NUM_RANKS, f"{size} --no-trajectories")["env_steps_per_s"],
        "slices, stored": lambda: run(NUM_RANKS, size)["env_steps_per_s"],
    }
    rates = turns(ways, rounds)
    bare_rates = rates["a bare pool"]
    return [(f"{task}: {name}", f"{median(of):,.0f}", spread(ratios(of, bare_rates))) for name, of in rates.items()]


if __name__ == "__main__":
    main(__doc__, {"measure": measure, "pools": pools}, {"bare": bare, "bare_pool": bare_pool})
