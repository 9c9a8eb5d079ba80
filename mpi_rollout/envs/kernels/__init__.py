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


def prepare() -> None:
    """Compile what Numba compiles for CPUs, so that other processes load it from the cache.

    It takes some seconds the first time, and a fraction of a second later.  Processes that make such envs at the same
    time do not need it: the first one compiles, and the others wait for it.  Numba's cache is beside this package, else
    in the user's cache folder, or where NUMBA_CACHE_DIR says.

    Raises
    ------
    UsageError
        Numba is missing.
    """
    from mpi_rollout.envs.kernels.cartpole import numba_envs

    numba_envs()
