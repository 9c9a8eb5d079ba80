"""Measure what trainers get: python benchmarks/trainers.py groups|ready.

groups  two groups of envs, and a policy that takes as long as the envs
ready   eight ranks with an env each that is slow now and then: first ready, first served

Every system runs in processes of its own, in turns; ratios are taken within a round.  Env steps are transitions.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measuring import ROUNDS, main, python, ratios, spread, table, turns
from sleeping import SleepingEnv

import mpi_rollout

SECONDS = 1.5
SLOW = {"step_s": 0.001, "slow_s": 0.01, "slow_every": 10}


def parts(num_envs: int, kwargs: dict, seconds: float, policy_s: float = 0.0, **options: Any) -> float | None:
    """Rows per second of envs that come back some at a time; a policy takes `policy_s` for each."""
    with mpi_rollout.connect(SleepingEnv, num_envs, env_kwargs=kwargs, **options) as envs:
        if envs is None:
            return None
        envs.reset(seed=0)
        envs.send(np.zeros(num_envs, int))
        start, rows = time.perf_counter(), 0
        while (elapsed_s := time.perf_counter() - start) < seconds:
            *_, indices = envs.recv()
            time.sleep(policy_s * len(indices))
            envs.send(np.zeros(len(indices), int), indices)
            rows += len(indices)
        return rows / elapsed_s


def independent() -> float | None:
    """The same envs, each stepped by a rank of its own without any exchange."""
    from mpi4py import MPI

    comm, env, steps = MPI.COMM_WORLD, SleepingEnv(**SLOW), 0
    env.reset(seed=comm.rank)
    comm.Barrier()
    start = time.perf_counter()
    while (seconds := time.perf_counter() - start) < 2 * SECONDS:
        env.step(0)
        steps += 1
    rates = comm.gather(steps / seconds)
    return sum(rates) if rates else None


grouped = partial(parts, 4, {"step_s": 0.002}, SECONDS, 0.001, root_envs=0)
ready = partial(parts, 8, SLOW, 2 * SECONDS)
SYSTEMS: dict[str, tuple[int, Callable[[], float | None]]] = {  # Name: ranks (0: no mpirun), what runs on each.
    "num_groups=2": (3, partial(grouped, num_groups=2)),
    "num_groups=1": (3, grouped),
    "batch_size=1, dedicated root": (9, partial(ready, batch_size=1, root_envs=0)),
    "lockstep, dedicated root": (9, partial(ready, root_envs=0)),
    "batch_size=1": (8, partial(ready, batch_size=1)),
    "lockstep": (8, ready),
    "independent workers": (8, independent),
}
RATIOS = {  # What is measured: this over that.
    "groups": [("num_groups=2", "num_groups=1")],
    "ready": [
        ("batch_size=1, dedicated root", "lockstep, dedicated root"),
        ("batch_size=1, dedicated root", "independent workers"),
        ("batch_size=1", "lockstep"),
        ("batch_size=1", "independent workers"),
    ],
}


def rate(name: str) -> float:
    """Run a system in processes of its own; return what it printed."""
    return float(python(SYSTEMS[name][0], __file__, "part", name, OMP_NUM_THREADS="1"))


def part(name: str) -> None:
    found = SYSTEMS[name][1]()
    if found is not None:
        print(found)


def measure(what: str, rounds: int = ROUNDS) -> None:
    names = dict.fromkeys(name for pair in RATIOS[what] for name in pair)
    rates = turns({name: partial(rate, name) for name in names}, rounds)
    rows = ((name, SYSTEMS[name][0] or "-", spread(values, ",.0f")) for name, values in rates.items())
    table(("system", "ranks", "per second: median (range)"), rows)
    pairs = ((this, that, spread(ratios(rates[this], rates[that]), ".2f")) for this, that in RATIOS[what])
    table(("this", "over that", "ratio: median (range)"), pairs)


if __name__ == "__main__":
    main(__doc__, {what: partial(measure, what) for what in RATIOS}, {"part": part})
