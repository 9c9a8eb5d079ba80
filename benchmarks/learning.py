"""What parallel envs do to learning, PPO on CartPole-v1: python benchmarks/learning.py run [SEEDS [FILE]], draw [FILE].

1 to 256 envs, in Stable-Baselines3's own vectorized envs, in MPIVecEnv and with the policy on the ranks; each update
learns from as many env steps, in the same minibatches and epochs, whatever the number of envs.  `run` writes
results/measured/study.json; `draw` makes study.png, and prints a table.

What a policy is worth is the mean return of 100 whole episodes that are not learnt from; the clock stands meanwhile.
The mean of training episodes would not do: those of 256 envs are 16 steps of each in an update, and the first to end
are the short ones.

Nothing else must run.  `others` of each run is the share of the machine's processor time that went to other processes
meanwhile; a run with more than 3 % is done again, twice at most.  Nobody waits for the processes of SubprocVecEnv: in
its runs, `others` has them too, and says nothing.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from measuring import CHECKOUT, MEASURED, cores_of_others, machine, main, python

sys.path.insert(0, str(CHECKOUT / "examples"))
NUM_ENVS, BATCH = (1, 4, 16, 64, 256), 4096
MOST_PROCESSES = 64  # Of SubprocVecEnv.
SYSTEMS = "DummyVecEnv", "SubprocVecEnv", "MPIVecEnv", "policy on the ranks"
MOST_STEPS = 15 * BATCH
SOLVED, QUIET, TRIES = 475.0, 0.03, 3
DATA = str(MEASURED / "study.json")
Curve = list[tuple[int, float, float]]  # Env steps, seconds, mean return.


def evaluate(act: Callable[[np.ndarray], np.ndarray], envs: Any) -> float:
    """The mean return of one episode in each of some envs, from the same starts every time."""
    observations, _ = envs.reset(seed=1)
    returns, is_running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while is_running.any():
        observations, rewards, terminations, truncations, _ = envs.step(act(observations))
        returns += rewards * is_running
        is_running &= ~(terminations | truncations)
    return float(returns.mean())


class Evaluation:
    """Notes how good a policy is after each update, while the clock of the training stands."""

    def __init__(self) -> None:
        import gymnasium

        self.envs = gymnasium.make_vec("CartPole-v1", num_envs=100, vectorization_mode="vector_entry_point")
        self.curve: Curve = []
        self.spent_s = 0.0

    def note(self, num_steps: int, seconds: float, act: Callable[[np.ndarray], np.ndarray]) -> None:
        import torch

        start = time.perf_counter()
        with torch.random.fork_rng():  # Training is left as if this had not been.
            value = evaluate(act, self.envs)
        self.curve.append((num_steps, round(seconds - self.spent_s, 3), round(value, 1)))
        self.spent_s += time.perf_counter() - start


def by_sb3(vec_env: Any, seed: int) -> dict[str, Any]:
    """Train by Stable-Baselines3, with the numbers of examples/actor_learner.py."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    evaluation = Evaluation()

    class Note(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:  # After an update, and before the first.
            note()

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy", vec_env, n_steps=BATCH // vec_env.num_envs, batch_size=512, n_epochs=8, learning_rate=1e-3,
        gamma=0.98, gae_lambda=0.9, seed=seed, device="cpu",
    )  # fmt: skip
    start = time.perf_counter()

    def note() -> None:
        seconds = time.perf_counter() - start
        evaluation.note(model.num_timesteps, seconds, lambda observations: model.predict(observations)[0])

    model.learn(MOST_STEPS, callback=Note())
    note()
    return {"curve": evaluation.curve}


def by_ranks(num_envs: int, seed: int) -> dict[str, Any] | None:
    """Train by examples/actor_learner.py."""
    import actor_learner

    import mpi_rollout

    evaluation, rng = Evaluation(), np.random.default_rng(seed)

    def tell(num_steps: int, seconds: float, _mean: float, model: Any) -> None:
        act = lambda observations: model.act(observations, None, rng.random((len(observations), 1)))[0]  # noqa: E731
        evaluation.note(num_steps, seconds, act)

    options = SimpleNamespace(
        env="CartPole-v1", length=BATCH // num_envs, ahead=False, total_steps=MOST_STEPS, seed=seed, mode=""
    )
    actor_learner.TASKS["CartPole-v1"] = (0.98, 0.1, np.inf)
    policy = partial(actor_learner.ActorCritic, "CartPole-v1")
    with mpi_rollout.connect("CartPole-v1", num_envs, policy=policy, infos="none") as envs:
        if envs is None:
            return None
        actor_learner.train(envs, options, tell)
    return {"curve": evaluation.curve}


def of_envs(system: str, num_envs: int, seed: int) -> dict[str, Any] | None:
    if system == "policy on the ranks":
        return by_ranks(num_envs, seed)
    if system == "MPIVecEnv":
        import mpi_rollout

        with mpi_rollout.connect("CartPole-v1", num_envs, autoreset_mode="same_step", infos="all") as envs:
            if envs is None:
                return None
            from mpi_rollout.sb3 import MPIVecEnv

            return by_sb3(MPIVecEnv(envs), seed)
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.env_util import make_vec_env

    own = make_vec_env("CartPole-v1", num_envs, vec_env_cls=getattr(vec_env, system))
    try:
        return by_sb3(own, seed)
    finally:
        own.close()


def watched(system: str, num_envs: int, seed: int) -> dict[str, Any]:
    """One run in a job of its own, with the share of processor time that others had."""
    cores: list[float] = []
    num_ranks = 1 if system in ("DummyVecEnv", "SubprocVecEnv") else min(2, num_envs)
    with cores_of_others(cores):
        found = json.loads(python(num_ranks, __file__, "one", system, num_envs, seed).splitlines()[-1])
    others = cores[0] / (os.cpu_count() or 1)
    num_steps, seconds, value = found["curve"][-1]
    came = f"{num_steps:,} steps, {seconds:.1f} s, {value:.0f}, others {others:.3f}"
    print(f"{system}, {num_envs} envs, seed {seed}: {came}", flush=True)
    return {"what": "envs", "system": system, "num_envs": num_envs, "seed": seed, "others": round(others, 3), **found}


def run_all(num_seeds: int = 5, path: str = DATA) -> None:
    """All runs one after the other, seed by seed, so that a busy spell of the machine meets every system."""
    runs: list[dict[str, Any]] = []
    for seed in range(num_seeds):
        for num_envs, system in itertools.product(NUM_ENVS, SYSTEMS):
            if system == "SubprocVecEnv" and num_envs > MOST_PROCESSES:
                continue
            tries = [watched(system, num_envs, seed)]
            while tries[-1]["others"] > QUIET and system != "SubprocVecEnv" and len(tries) < TRIES:
                tries.append(watched(system, num_envs, seed))
            runs.append(min(tries, key=lambda run: run["others"]))
        text = json.dumps({"machine": machine(), "runs": runs})
        Path(path).write_text(text.replace('{"what"', '\n{"what"') + "\n")


def one(system: str, num_envs: int, seed: int) -> None:
    """One run, on all ranks of this job; print what it gave."""
    found = of_envs(system, num_envs, seed)
    if found is not None:
        print(json.dumps(found))


def draw(path: str = DATA) -> None:
    import learning_figures

    learning_figures.draw(Path(path))


if __name__ == "__main__":
    main(__doc__, {"run": run_all}, {"draw": draw, "one": one})
