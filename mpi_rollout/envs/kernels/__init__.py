"""CartPole as natively vectorized envs of this project's own: kernels that take a whole fragment in one call.

Importing this folder registers them with Gymnasium, and loads none of the packages that they need.  Their random
numbers are functions of (seed, env index, episode), so the data do not depend on how the envs are divided.
"""

import gymnasium

for _device in ("Numba", "Torch", "CUDA"):
    gymnasium.register(
        id=f"mpi_rollout/CartPole{_device}-v0",
        entry_point="mpi_rollout.envs.kernels.cartpole:CartPoleEnv",
        vector_entry_point=f"mpi_rollout.envs.kernels.cartpole:{_device.lower()}_envs",
        max_episode_steps=500,
        reward_threshold=475.0,
    )
