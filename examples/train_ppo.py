"""Train PPO on CartPole-v1 with Stable-Baselines3, over MPI ranks.

    mpirun -n 2 python examples/train_ppo.py

It tells how far it is, and at the end the mean return of 100 episodes.  Gymnasium calls 475 solved.
"""

import argparse
import sys
import time
from typing import Any

import mpi_rollout


def train(envs: mpi_rollout.MPIVectorEnv, total_steps: int, seed: int) -> float:
    """Train on these envs, then return the mean return of 100 of their episodes."""
    from mpi_rollout.sb3 import MPIVecEnv  # isort: skip  First: its ImportError says what to install.
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecMonitor

    torch.set_num_threads(1)  # More are slower with networks so small, and take cores from other ranks.
    vec_env = VecMonitor(MPIVecEnv(envs))
    model = PPO(
        "MlpPolicy",
        vec_env,
        n_steps=2048 // envs.num_envs,
        batch_size=256,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    model.learn(total_steps, callback=tell)
    mean, _ = evaluate_policy(model, vec_env, n_eval_episodes=100)
    return mean


def tell(learning: dict[str, Any], _: dict[str, Any]) -> bool:
    """Tell how far the training is, before each update.

    Stable-Baselines3 calls this in each step, and stops if it returns False.
    """
    model = learning["self"]
    if learning["n_steps"] + 1 == learning["n_rollout_steps"] and model.ep_info_buffer:
        mean = sum(episode["r"] for episode in model.ep_info_buffer) / len(model.ep_info_buffer)
        sys.stderr.write(f"{model.num_timesteps:,} of {model._total_timesteps:,} env steps, mean return {mean:.0f}\n")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=32, help="number of envs on all ranks together")
    parser.add_argument("--total-steps", type=int, default=100_000, help="env steps of the training, over all envs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    start = time.perf_counter()
    with mpi_rollout.connect("CartPole-v1", options.num_envs, autoreset_mode="same_step") as envs:
        if envs is None:
            return  # Not rank 0: this rank has stepped its envs for rank 0, inside connect().
        try:
            mean = train(envs, options.total_steps, options.seed)
        except ImportError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(78)
        print(f"mean return {mean:.1f} of 500 over 100 episodes, after {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
