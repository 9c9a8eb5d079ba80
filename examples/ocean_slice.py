"""Collect from PufferLib's Ocean envs, which are in C, as natively vectorized slices.

    mpirun -n 2 python -m mpi_rollout --env-factory examples/ocean_slice.py:make_slice --vectorization-mode native \
        --env-kwargs '{"task": "breakout"}' --num-envs 1024 --num-steps 500 --out results/ocean.h5

Each rank steps its envs itself, without worker processes.  This is for Ocean envs of one agent, as PufferLib 3.0.0 has
them:

* An env that ends begins the next episode in the same step, and its last observation is lost (SAME_STEP).
* All envs of a process draw from C's rand().  So the data depend on the number of ranks, and a run cannot be continued.
* Its truncations are never set.  CartPole also does not say when its 200 steps are over: that is seen from the reward.
"""

from importlib import import_module

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LARGEST_SEED = 2**31 - 1  # Of C.


class OceanSlice(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    reproducibility, takes_uint8 = "slice", True

    def __init__(self, env, binding, seed, truncates_with_reward=None):
        self.env, self.num_envs, self.seed = env, env.num_agents, seed
        self.vec_step, self.handle = binding.vec_step, env.c_envs
        self.truncates_with_reward = truncates_with_reward
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed=None, options=None):
        """Begin episodes.  Arrays are Ocean's own, valid until the next call: the program copies what it needs."""
        self.env.reset(self.seed)
        return self.env.observations, {}

    def step(self, actions):
        self.env.actions[:] = actions.reshape(self.env.actions.shape)
        self.vec_step(self.handle)
        return self.env.observations, self.env.rewards, self.env.terminals, self.truncations(), {}

    def rollout(self, actions, columns):
        """Take many steps in one call, and write what they give into the columns; None is for what nobody reads."""
        env, step, handle = self.env, self.vec_step, self.handle
        targets = columns.observations, columns.rewards, columns.terminations
        pairs = list(zip(targets, (env.observations, env.rewards, env.terminals), strict=True))
        pairs = [(target, source) for target, source in pairs if target is not None]
        for row, batch in enumerate(actions.reshape(-1, *env.actions.shape)):
            env.actions[:] = batch
            step(handle)
            for target, source in pairs:
                target[row] = source
            if columns.truncations is not None:
                columns.truncations[row] = self.truncations()

    def last_observations(self):
        return self.env.observations.copy()

    def truncations(self):
        if self.truncates_with_reward is None:
            return np.zeros(self.num_envs, bool)
        return (self.env.rewards == self.truncates_with_reward) & ~self.env.terminals

    def close(self, **kwargs):
        self.env.close()


def make_slice(env_indices, seed, task="cartpole", **kwargs):
    """Make Ocean's env `task` for the envs of a rank; `kwargs` are its own arguments."""
    module = import_module(f"pufferlib.ocean.{task}.{task}")
    make = getattr(module, task.capitalize())
    # Ocean multiplies the seed by the number of envs, and counts on from there.
    seed_of_slice = np.random.SeedSequence([seed, env_indices.start]).generate_state(1)[0]
    seed_of_slice = int(seed_of_slice) % (LARGEST_SEED // len(env_indices))
    env = make(num_envs=len(env_indices), seed=seed_of_slice, **kwargs)
    return OceanSlice(env, module.binding, seed_of_slice, truncates_with_reward=0.0 if task == "cartpole" else None)
