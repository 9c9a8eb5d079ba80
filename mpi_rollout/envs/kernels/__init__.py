"""CartPole as natively vectorized envs of this project's own: kernels that take a whole fragment in one call.

Importing this folder registers them with Gymnasium, and loads none of the packages that they need.  Their random
numbers are functions of (seed, env index, episode), so the data do not depend on how the envs are divided.
"""

import gymnasium

_MODULES = {"Numba": "numba_cpu", "Torch": "torch_tensors", "CUDA": "numba_cuda"}
for _device, _module in _MODULES.items():
    gymnasium.register(
        id=f"mpi_rollout/CartPole{_device}-v0",
        entry_point="mpi_rollout.envs.kernels.cartpole:CartPoleEnv",
        vector_entry_point=f"mpi_rollout.envs.kernels.{_module}:make_envs",
        max_episode_steps=500,
        reward_threshold=475.0,
    )


def prepare() -> None:
    """Compile what Numba compiles for CPUs, so that other processes load it from the cache.

    It takes some seconds the first time, and a fraction of a second later.  Without it, each process that starts
    before there is a cache compiles for itself.  Numba's cache is beside this package, else in the user's cache folder,
    or where NUMBA_CACHE_DIR says.
    """
    from mpi_rollout.envs.kernels.numba_cpu import compiled_kernel

    compiled_kernel()
