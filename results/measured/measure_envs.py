"""Measure the trainer's figures again: python results/measured/measure_envs.py step|groups|ready.

Every system runs in processes of its own, one after the other, five rounds; ratios are taken within a round, and
given as median and range.  Env steps are transitions: rows that only reset are not counted.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
from measure import machine, mpirun, spread

ROUNDS = 5
SECONDS = 1.5
NUM_ENVS = 64


class Sleeping(gymnasium.Env):
    """Takes `step_s` for a step, and every `slow_every`-th step `slow_s`, counted from another step in each env."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s: float, slow_s: float = 0.0, slow_every: int = 0):
        self._step_s, self._slow_s, self._slow_every = step_s, slow_s, slow_every

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = int(self.np_random.integers(1000))
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self._count += 1
        is_slow = self._slow_every and self._count % self._slow_every == 0
        time.sleep(self._slow_s if is_slow else self._step_s)
        return np.zeros(4, np.float32), 1.0, False, False, {}


def actions_of(num_envs: int) -> list[np.ndarray]:
    """Random actions for some steps, drawn before the clock runs."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 2, num_envs) for _ in range(64)]


def rate_of_vector_env(envs: gymnasium.vector.VectorEnv) -> float:
    """Env steps per second of a Gymnasium vector env in NEXT_STEP mode."""
    actions = actions_of(envs.num_envs)
    envs.reset(seed=0)
    for row in actions:
        envs.step(row)
    start, sweeps, ends = time.perf_counter(), 0, []
    while (seconds := time.perf_counter() - start) < SECONDS:
        _, _, terminations, truncations, _ = envs.step(actions[sweeps % 64])
        ends.append((terminations, truncations))
        sweeps += 1
    num_resets = sum(int((terminated | truncated).sum()) for terminated, truncated in ends)
    return (sweeps * envs.num_envs - num_resets) / seconds


def rate_of_vec_env(envs) -> float:
    """Env steps per second of a Stable-Baselines3 vec env."""
    actions = actions_of(envs.num_envs)
    envs.seed(0)
    envs.reset()
    for row in actions:
        envs.step(row)
    start, sweeps = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < SECONDS:
        envs.step(actions[sweeps % 64])
        sweeps += 1
    return sweeps * envs.num_envs / seconds


def cartpoles() -> list[Callable[[], gymnasium.Env]]:
    return [lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS


def run_sync() -> float:
    return rate_of_vector_env(gymnasium.vector.SyncVectorEnv(cartpoles()))


def run_async() -> float:
    envs = gymnasium.vector.AsyncVectorEnv(cartpoles())
    rate = rate_of_vector_env(envs)
    envs.close()
    return rate


def run_dummy() -> float:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return rate_of_vec_env(DummyVecEnv(cartpoles()))


def run_subproc() -> float:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv(cartpoles(), start_method="fork")
    rate = rate_of_vec_env(envs)
    envs.close()
    return rate


def run_connect() -> float | None:
    import mpi_rollout

    with mpi_rollout.connect("CartPole-v1", NUM_ENVS) as envs:
        return None if envs is None else rate_of_vector_env(envs)


def run_connect_views() -> float | None:
    import mpi_rollout

    with mpi_rollout.connect("CartPole-v1", NUM_ENVS, copy=False, infos="none") as envs:
        return None if envs is None else rate_of_vector_env(envs)


def run_sb3() -> float | None:
    import mpi_rollout

    with mpi_rollout.connect("CartPole-v1", NUM_ENVS, autoreset_mode="same_step") as envs:
        if envs is None:
            return None
        from mpi_rollout.sb3 import MPIVecEnv

        return rate_of_vec_env(MPIVecEnv(envs))


def run_groups(num_groups: int) -> float | None:
    """Steps of all envs per second, with a policy that takes as long as the envs: 2 ms for each env of a rank."""
    import mpi_rollout

    kwargs = {"step_s": 0.002}
    with mpi_rollout.connect(Sleeping, 4, env_kwargs=kwargs, num_groups=num_groups, dedicated_root=True) as envs:
        if envs is None:
            return None
        envs.reset(seed=0)
        envs.send(np.zeros(4, int))
        start, rows = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < SECONDS:
            *_, env_indices = envs.recv()
            time.sleep(0.002 * len(env_indices) / 2)  # Two ranks step envs.
            envs.send(np.zeros(len(env_indices), int), env_indices)
            rows += len(env_indices)
        return rows / 4 / seconds


SLOW = {"step_s": 0.001, "slow_s": 0.01, "slow_every": 10}


def run_ready(dedicated_root: bool, batch_size: int | None) -> float | None:
    """Env steps per second over 8 ranks with an env each."""
    import mpi_rollout

    with mpi_rollout.connect(
        Sleeping, 8, env_kwargs=SLOW, batch_size=batch_size, dedicated_root=dedicated_root
    ) as envs:
        if envs is None:
            return None
        envs.reset(seed=0)
        envs.send(np.zeros(8, int))
        start, rows = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < 2 * SECONDS:
            *_, env_indices = envs.recv()
            envs.send(np.zeros(len(env_indices), int), env_indices)
            rows += len(env_indices)
        return rows / seconds


def run_independent(num_ranks: int) -> float | None:
    """The same envs, each stepped by a rank of its own without any exchange."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    env, steps = Sleeping(**SLOW), 0
    env.reset(seed=comm.rank)
    comm.Barrier()
    start = time.perf_counter()
    while (seconds := time.perf_counter() - start) < 2 * SECONDS:
        env.step(0)
        steps += 1
    rates = comm.gather(steps / seconds)
    return sum(rates[:num_ranks]) if rates else None


# Name: ranks (0 is without mpirun), what runs on each of them.
SYSTEMS: dict[str, tuple[int, Callable[[], float | None]]] = {
    "mpi_rollout.connect": (2, run_connect),
    "connect(copy=False, infos='none')": (2, run_connect_views),
    "SyncVectorEnv": (0, run_sync),
    "AsyncVectorEnv": (0, run_async),
    "MPIVecEnv": (2, run_sb3),
    "DummyVecEnv": (0, run_dummy),
    "SubprocVecEnv": (0, run_subproc),
    "num_groups=2": (3, lambda: run_groups(2)),
    "num_groups=1": (3, lambda: run_groups(1)),
    "batch_size=1, dedicated root": (9, lambda: run_ready(True, 1)),
    "lockstep, dedicated root": (9, lambda: run_ready(True, None)),
    "batch_size=1": (8, lambda: run_ready(False, 1)),
    "lockstep": (8, lambda: run_ready(False, None)),
    "independent workers": (8, lambda: run_independent(8)),
}
# What is measured: this over that.
RATIOS = {
    "step": [
        ("mpi_rollout.connect", "SyncVectorEnv"),
        ("mpi_rollout.connect", "AsyncVectorEnv"),
        ("mpi_rollout.connect", "SubprocVecEnv"),
        ("connect(copy=False, infos='none')", "mpi_rollout.connect"),
        ("MPIVecEnv", "DummyVecEnv"),
        ("MPIVecEnv", "SubprocVecEnv"),
    ],
    "groups": [("num_groups=2", "num_groups=1")],
    "ready": [
        ("batch_size=1, dedicated root", "lockstep, dedicated root"),
        ("batch_size=1, dedicated root", "independent workers"),
        ("batch_size=1", "lockstep"),
        ("batch_size=1", "independent workers"),
    ],
}


def run(name: str) -> float:
    """Run a system in processes of its own; return what it printed."""
    num_ranks, _ = SYSTEMS[name]
    if num_ranks:
        return float(mpirun(num_ranks, __file__, "run", name))
    import subprocess

    done = subprocess.run([sys.executable, __file__, "run", name], capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(ratios: list[tuple[str, str]]) -> None:
    """Print the rates of all systems and their ratios."""
    names = list(dict.fromkeys(name for pair in ratios for name in pair))
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            rates[name].append(run(name))
    print("| system | ranks | per second: median (range) |\n|---|---|---|")
    for name in names:
        print(f"| {name} | {SYSTEMS[name][0] or '-'} | {spread(rates[name], ',.0f')} |")
    print("\n| this | over that | ratio: median (range) |\n|---|---|---|")
    for first, second in ratios:
        each = [a / b for a, b in zip(rates[first], rates[second], strict=True)]
        print(f"| {first} | {second} | {spread(each, '.2f')} |")


if __name__ == "__main__":
    what, *words = sys.argv[1:] or ["--help"]
    if what == "run":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        found = SYSTEMS[words[0]][1]()
        if found is not None:
            print(found)
    elif what in RATIOS:
        print(f"{machine()}: `python results/measured/{Path(__file__).name} {what}`\n")
        measure(RATIOS[what])
    else:
        sys.exit(__doc__)
