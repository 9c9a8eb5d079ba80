"""Train PPO on CartPole-v1 over MPI ranks: mpirun -n 2 python -m mpi_rollout.examples.train_ppo

Prints the mean return of 100 episodes after training; exits with 1 if it is less than 475, which is what Gymnasium
calls solved.
"""

import argparse
import sys
import time

import mpi_rollout
from mpi_rollout.vector_env import MPIVectorEnv


def train(envs: MPIVectorEnv, total_steps: int, seed: int) -> float:
    """Train on these envs, then return the mean return of 100 of their episodes."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecMonitor

    from mpi_rollout.sb3 import MPIVecEnv

    torch.set_num_threads(1)  # More are slower with networks so small, and take cores from other ranks.
    vec_env = VecMonitor(MPIVecEnv(envs))
    model = PPO(
        "MlpPolicy", vec_env, n_steps=2048 // envs.num_envs, batch_size=256, n_epochs=10, gamma=0.98, gae_lambda=0.8,
        learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, seed=seed, device="cpu",
    )  # fmt: skip
    model.learn(total_steps)
    mean, _ = evaluate_policy(model, vec_env, n_eval_episodes=100)
    return mean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=32, help="over all ranks")
    parser.add_argument("--total-steps", type=int, default=100_000, help="of training, over all envs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    start = time.perf_counter()
    with mpi_rollout.connect("CartPole-v1", options.num_envs, autoreset_mode="same_step") as envs:
        if envs is None:
            return 0
        mean = train(envs, options.total_steps, options.seed)
        print(f"mean return {mean:.1f} of 500 over 100 episodes, after {time.perf_counter() - start:.0f} s")
        return int(mean < 475)


if __name__ == "__main__":
    sys.exit(main())
