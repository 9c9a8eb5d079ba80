"""What Gymnasium itself gives: its `SyncVectorEnv`, driven in one process with the seeds and actions of a run."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from mpi_rollout.layout import leaves
from mpi_rollout.seeding import episode_seeds


class SeededEpisodes(gymnasium.Wrapper):
    """Takes the next of `seeds` at every reset that is not given one."""

    def __init__(self, env: gymnasium.Env, seeds: Iterator[int]):
        super().__init__(env)
        self.seeds = seeds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return self.env.reset(seed=next(self.seeds) if seed is None else seed, options=options)


def seeded_sync(make: Callable[[], gymnasium.Env], num_envs: int, seed: int) -> SyncVectorEnv:
    """Gymnasium's own vector env, with the episode seeds of a run."""
    return SyncVectorEnv([lambda i=i: SeededEpisodes(make(), episode_seeds(seed, i)) for i in range(num_envs)])


def arrays(name: str, space: spaces.Space, tree: Any) -> dict[str, np.ndarray]:
    """Copies of the leaves of batched observations or actions, by their path in a file."""
    return {f"{name}/{leaf.path}".strip("/"): np.array(leaf.of(tree)) for leaf in leaves(space)}


def rollout(envs: VectorEnv, policy: Callable[[Any], Any], num_steps: int) -> dict[str, np.ndarray]:
    """Drive a vector env; return what /trajectories of a file of the same run must hold."""
    observations, _ = envs.reset()
    steps = []
    seen = [arrays("observations", envs.single_observation_space, observations)]
    for _ in range(num_steps):
        actions = policy(observations)
        chosen = arrays("actions", envs.single_action_space, actions)
        observations, rewards, terminations, truncations, _ = envs.step(actions)
        results = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        steps.append(chosen | {name: column.copy() for name, column in results.items()})
        seen.append(arrays("observations", envs.single_observation_space, observations))
    return {name: np.stack([row[name] for row in rows]) for rows in (seen, steps) for name in rows[0]}
