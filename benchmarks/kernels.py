"""The project's own CartPole beside others: `kernels.py speed|dynamics`.

`speed` is env steps per second of processor time, on one core.  All systems are set up first; then they have their
turns, each round in another random order.  The median of the rounds counts.  Rows that only reset count as steps.

`dynamics` compares single steps from random states with those of Gymnasium's NumPy version, bit for bit.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # Of torch.

import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from measuring import main, turns

import mpi_rollout.envs.kernels  # noqa: F401  # Registers the envs.
from mpi_rollout.envs.rollout import RolloutColumns

ROUNDS, WINDOW_S = 7, 0.2
SHAPES = ((64, 1), (64, 64), (1024, 16), (8192, 1), (8192, 16), (8192, 64))  # Envs, steps of a call.
Turn = Callable[[], object]


def kernel(backend: str, num_envs: int, num_rows: int, is_all: bool) -> Turn:
    """A call of `rollout` into strided columns, as a slot has them: all of them, or results."""
    mode = "vector_entry_point"
    envs = gymnasium.make_vec(f"mpi_rollout/CartPole{backend}-v0", num_envs, vectorization_mode=mode)
    envs.reset()
    actions = np.random.default_rng(0).integers(0, 2, (num_rows, num_envs))
    observations, rewards, *flags = (
        np.zeros((num_rows, num_envs + 64, *shape), dtype)[:, :num_envs]
        for shape, dtype in (((4,), np.float32), ((), np.float64), ((), bool), ((), bool))
    )
    columns = RolloutColumns(observations if is_all else None, rewards, *flags)
    return lambda: envs.rollout(actions, columns)


def stepped(envs: gymnasium.vector.VectorEnv, num_envs: int, num_rows: int) -> Turn:
    """As many calls of `step`, with nothing done to what they return."""
    envs.reset()
    actions = np.random.default_rng(0).integers(0, 2, (num_rows, num_envs))

    def turn() -> None:
        for row in actions:
            envs.step(row)

    return turn


def systems(num_envs: int, num_rows: int) -> dict[str, Turn]:
    theirs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    turns = {
        "Numba, all columns": kernel("Numba", num_envs, num_rows, True),
        "Numba, results": kernel("Numba", num_envs, num_rows, False),
        "Gymnasium's NumPy": stepped(theirs, num_envs, num_rows),
    }
    if find_spec("torch"):
        turns["torch, all columns"] = kernel("Torch", num_envs, num_rows, True)
    if find_spec("envpool"):
        import envpool

        pool = envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=1, seed=0)
        turns["EnvPool, one thread"] = stepped(pool, num_envs, num_rows)
    return turns


def steps_per_cpu_s(turn: Turn, num_steps: int) -> float:
    turn()
    at_once = max(1, 20_000 // num_steps)  # Reading the clock takes time, too.
    calls, start = 0, time.process_time()
    while (taken_s := time.process_time() - start) < WINDOW_S:
        for _ in range(at_once):
            turn()
        calls += at_once
    return calls * num_steps / taken_s


def speed() -> None:
    for num_envs, num_rows in SHAPES:
        ways = systems(num_envs, num_rows)
        rates = turns({name: partial(steps_per_cpu_s, way, num_envs * num_rows) for name, way in ways.items()}, ROUNDS)
        shown = ", ".join(f"{name} {median(each) / 1e6:.3g} M/s" for name, each in rates.items())
        print(f"{num_envs} envs x {num_rows} steps: {shown}", flush=True)


def compare_dynamics(num_envs: int = 100_000, num_rounds: int = 100) -> None:
    mode, rng = "vector_entry_point", np.random.default_rng(1)
    limits = np.array([2.4, 3, 12 * np.pi / 180, 3])
    theirs: Any = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode=mode)
    ours: Any = gymnasium.make_vec("mpi_rollout/CartPoleNumba-v0", num_envs, vectorization_mode=mode)
    counts = dict.fromkeys(("observations", "terminations", "states", "ends"), 0)
    for number in range(num_rounds):
        theirs.reset(), ours.reset()
        states = rng.uniform(-1, 1, (4, num_envs)) * limits[:, np.newaxis]
        if number % 4 in (1, 2):  # Near the end of the track, or of the angle.
            row = 0 if number % 4 == 1 else 2
            states[row] = np.sign(states[row]) * (limits[row] - rng.uniform(0, 0.05, num_envs))
        theirs.state, ours._backend._device.get().states[...] = states.copy(), states
        actions = rng.integers(0, 2, num_envs)
        expected, results = theirs.step(actions), ours.step(actions)
        counts["observations"] += int(np.any(expected[0] != results[0], axis=1).sum())
        counts["terminations"] += int(np.sum(expected[2] != results[2]))
        counts["states"] += int(np.any(theirs.state != ours._backend._device.get().states, axis=0).sum())
        counts["ends"] += int(expected[2].sum())
    differences = ", ".join(f"{count:,} {name}" for name, count in counts.items() if name != "ends")
    print(f"of {num_rounds * num_envs:,} steps ({counts['ends']:,} ends) differ {differences}")


if __name__ == "__main__":
    main(__doc__, {"speed": speed, "dynamics": compare_dynamics})
