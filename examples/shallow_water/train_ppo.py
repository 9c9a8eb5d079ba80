"""Train PPO of Stable-Baselines3 to calm the waves; then say how much of their energy they lose by what it learned.

mpirun -n 2 python examples/shallow_water/train_ppo.py
mpirun -n 4 python examples/shallow_water/train_ppo.py --ranks-per-env 2
"""

import argparse
import sys
import time
from typing import Any

import numpy as np
from env import NUM_PADS, make_env

import mpi_rollout

NUM_ENVS, NUM_STEPS = 8, 150
TRIED_SEEDS = 1000, 2000, 3000, 4000  # Of other episodes than those of the training.


def train(envs: mpi_rollout.MPIVectorEnv, total_steps: int, seed: int):
    """Return the trained model."""
    from mpi_rollout.sb3 import MPIVecEnv  # isort: skip  First: its ImportError says what to install.
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    torch.set_num_threads(1)  # More are slower with networks so small, and take cores from other ranks.
    settings: dict[str, Any] = {"n_steps": NUM_STEPS, "batch_size": 300, "gamma": 0.98, "gae_lambda": 0.9}
    # Strong random actions would make such waves that nothing can be learned.
    settings |= {"policy_kwargs": {"log_std_init": -2}, "seed": seed, "device": "cpu"}
    vec_env = VecMonitor(MPIVecEnv(envs))
    model = PPO("MlpPolicy", vec_env, lambda left: 1e-3 * left, **settings)
    return model.learn(total_steps, callback=tell)


def tell(learning: dict[str, Any], _: dict[str, Any]) -> bool:
    """Tell how far the training is, before each update; Stable-Baselines3 calls this in each step."""
    model = learning["self"]
    if learning["n_steps"] + 1 == NUM_STEPS and model.ep_info_buffer:
        mean = np.mean([episode["r"] for episode in model.ep_info_buffer])
        sys.stderr.write(f"{model.num_timesteps:,} env steps, the waves lose {mean:.0f} % of their energy\n")
    return True


def mean_return(envs: mpi_rollout.MPIVectorEnv, policy) -> float:
    """Return the mean return of the same 32 episodes for every policy."""
    total = 0.0
    for seed in TRIED_SEEDS:
        observations, _ = envs.reset(seed=seed)
        for _ in range(NUM_STEPS):
            observations, rewards, *_ = envs.step(policy(observations))
            total += rewards.sum()
    return total / (len(TRIED_SEEDS) * NUM_ENVS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks-per-env", type=int, default=1, help="number of ranks that step each env together")
    parser.add_argument("--total-steps", type=int, default=60_000, help="env steps of the training, over all envs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    start, shape, random = time.perf_counter(), (NUM_ENVS, NUM_PADS), np.random.default_rng(0)
    ranks = {"ranks_per_env": options.ranks_per_env}
    with mpi_rollout.connect(make_env, NUM_ENVS, autoreset_mode="same_step", **ranks) as envs:
        if envs is None:
            return  # Not rank 0: this rank has stepped its envs for rank 0, inside connect().
        try:
            model = train(envs, options.total_steps, options.seed)
        except ImportError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(78)
        print(f"trained for {time.perf_counter() - start:.0f} s; of their energy the waves lose")
        for name, policy in {
            "with what it learned": lambda seen: model.predict(seen, deterministic=True)[0],
            "with no action": lambda _: np.zeros(shape, np.float32),
            "with random actions": lambda _: random.uniform(-1, 1, shape).astype(np.float32),
        }.items():
            print(f"{mean_return(envs, policy):7.1f} % {name}")


if __name__ == "__main__":
    main()
