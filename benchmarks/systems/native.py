"""Other implementations of an env: its own vectorized version, EnvPool's, this program's kernels by themselves."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout.studies.compare import SEED, Setup, bare, drawn_actions, envpool, envpool_id
from systems import KERNELS
from systems.ours import of_parts
from systems.stepped import Stepper

CALL_ROWS = 2**15  # Rows of a call of a kernel: they fit the cache; but no fewer steps than these:
LEAST_STEPS = 16


# The env's own vectorized version: Gymnasium's NumPy envs on one core, ALE's threads on all.
entry_point = partial(bare, vectorization_mode="vector_entry_point")
envpool_1 = partial(envpool, num_threads=1)


@contextmanager
def envpool_async(setup: Setup, num_threads: int = 0) -> Iterator[Stepper]:
    """EnvPool, first ready, in batches of half of the envs or of the next smaller divisor of their number."""
    import envpool as library
    from gymnasium.vector.utils import batch_space

    num_envs, num_threads = setup.num_envs, num_threads or setup.num_cores
    batch_size = next(size for size in range(num_envs // 2, 0, -1) if num_envs % size == 0)
    sizes = {"num_envs": num_envs, "batch_size": batch_size, "num_threads": num_threads}
    envs = library.make(envpool_id(setup), env_type="gymnasium", seed=SEED, **sizes)

    def reset() -> None:
        envs.async_reset()
        for _ in range(num_envs // batch_size):  # The resets themselves.
            envs.recv()

    def send(actions: Any, indices: np.ndarray | None) -> None:
        envs.send(actions, np.arange(num_envs) if indices is None else indices)

    def recv() -> Any:
        _, _, terminations, truncations, infos = envs.recv()
        return terminations, truncations, infos["env_id"]

    with closing(envs):
        yield of_parts(num_envs, drawn_actions(batch_space(envs.action_space, num_envs)), reset, send, recv)


envpool_async_1 = partial(envpool_async, num_threads=1)


@contextmanager
def kernel(setup: Setup, env_id: str) -> Iterator[Stepper]:
    """This rank's share of a kernel's envs: a sweep is a call of many steps, which writes all that each gives."""
    import mpi_rollout.envs.kernels  # noqa: F401  # Registers the envs.
    from mpi_rollout.envs.rollout import RolloutColumns

    mine, mode = setup.mine, {"vectorization_mode": "vector_entry_point"}
    envs: Any = gymnasium.make_vec(env_id, len(mine), first_env=mine.start, **mode)
    length = max(LEAST_STEPS, min(64, CALL_ROWS // len(mine)))
    actions = cycle([np.random.default_rng(0).integers(0, 2, (length, len(mine)))])
    observations = np.zeros((length, len(mine), *envs.single_observation_space.shape), np.float32)
    ends = np.zeros((2, length, len(mine)), np.bool_)
    columns = RolloutColumns(observations, np.zeros((length, len(mine))), *ends)

    def sweep() -> tuple[int, int]:
        envs.rollout(next(actions), columns)
        ended = np.logical_or(*ends)
        return int(np.count_nonzero(ended)), int(np.count_nonzero(ended[-1]))

    def count(sweeps: Sequence[tuple[int, int]]) -> int:  # The row after an end resets.
        return len(sweeps) * length * len(mine) - sum(num_ended for num_ended, _ in sweeps) + sweeps[-1][1]

    with closing(envs):
        yield Stepper(partial(envs.reset, seed=SEED), sweep, count)


def _kernel_of(setup: Setup, backend: str) -> AbstractContextManager[Stepper]:
    return kernel(setup, KERNELS[setup.env["env"]][backend])


numba, torch, cuda = (partial(_kernel_of, backend=backend) for backend in ("numba", "torch", "cuda"))
