"""How envs in another form are made: natively vectorized ones, EnvPool's, kernels.

What a system needs beyond this program is imported in its function only.
"""

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout.bench.compare.all_cores import OnAllCores
from mpi_rollout.bench.compare.forms import envpool_id, kernel_of
from mpi_rollout.bench.compare.setups import Setup, actions_of
from mpi_rollout.bench.compare.steppers import PartsStepper, VectorStepper, of_vector_env
from mpi_rollout.bench.compare.turns import SEED, BatchSystem, PartsSystem
from mpi_rollout.collect.fragments import auto_length
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.rollout import RolloutColumns

KERNEL_ROW_NBYTES = 34  # Of an env and step: observation, reward and flags of CartPole, and its action.
LEAST_LENGTH = 16  # Shorter calls cost more than arrays that do not fit the cache.


def native(setup: Setup) -> BatchSystem:
    """Make the env's own vectorized version: Gymnasium's NumPy envs on one core, ALE's threads on all."""
    return of_vector_env(EnvMaker(setup.env, {}, "vector_entry_point").native(range(setup.num_envs)))


def _envpool(setup: Setup, num_threads: int, batch_size: int) -> Any:
    import envpool

    sizes = {"num_envs": setup.num_envs, "batch_size": batch_size, "num_threads": num_threads}
    return envpool.make(envpool_id(setup.env), env_type="gymnasium", seed=SEED, **sizes)


class EnvPoolSteps:
    """EnvPool as `VectorStepper` needs it: it gets its seed when it is made."""

    def __init__(self, envs: Any, num_envs: int):
        self.num_envs, self.step, self.close = num_envs, envs.step, envs.close
        self._envs = envs

    def reset(self, seed: int) -> None:
        self._envs.reset()


def envpool(setup: Setup) -> BatchSystem:
    """Make EnvPool with a thread for each core, in lockstep."""
    return _pool(setup, setup.num_cores)


def envpool_1(setup: Setup) -> BatchSystem:
    """Make EnvPool with one thread, in lockstep."""
    return _pool(setup, 1)


def _pool(setup: Setup, num_threads: int) -> BatchSystem:
    envs = _envpool(setup, num_threads, setup.num_envs)
    return BatchSystem(VectorStepper(EnvPoolSteps(envs, setup.num_envs), actions_of(envs.action_space, setup.num_envs)))


class EnvPoolParts:
    """EnvPool's batches of those that are ready first."""

    def __init__(self, envs: Any, num_batches: int):
        self._envs, self._num_batches, self.close = envs, num_batches, envs.close
        self._all = np.arange(envs.config["num_envs"])

    def reset(self) -> None:
        self._envs.async_reset()
        for _ in range(self._num_batches):  # The resets themselves.
            self._envs.recv()

    def send(self, actions: object, indices: np.ndarray | None) -> None:
        self._envs.send(actions, self._all if indices is None else indices)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, _, terminations, truncations, infos = self._envs.recv()
        return terminations, truncations, infos["env_id"]


def envpool_by_parts(setup: Setup) -> PartsSystem:
    """Make EnvPool with a thread for each core, first ready."""
    return _pool_by_parts(setup, setup.num_cores)


def envpool_by_parts_1(setup: Setup) -> PartsSystem:
    """Make EnvPool with one thread, first ready."""
    return _pool_by_parts(setup, 1)


def _pool_by_parts(setup: Setup, num_threads: int) -> PartsSystem:
    """Make EnvPool, first ready, in batches of half of the envs or of the next smaller divisor of their number.

    What is under way at a turn's end must come back in whole batches.
    """
    num_envs = setup.num_envs
    batch_size = next(size for size in range(num_envs // 2, 0, -1) if num_envs % size == 0)
    envs = _envpool(setup, num_threads, batch_size)
    parts = EnvPoolParts(envs, num_envs // batch_size)
    return PartsSystem(PartsStepper(parts, num_envs, actions_of(envs.action_space, num_envs)))


class KernelStepper:
    """Envs that take many steps in one call: a sweep is a call, which writes all that each step gives.

    Parameters
    ----------
    actions
        Of shape (num_steps, num_envs), those of a sweep; used in turn.
    """

    def __init__(self, envs: Any, actions: Sequence[np.ndarray]):
        num_steps, num_envs = self._shape = actions[0].shape
        self._envs, self._actions = envs, cycle(actions)
        observations = np.zeros((num_steps, num_envs, *envs.single_observation_space.shape), np.float32)
        self._ends = np.zeros((2, num_steps, num_envs), np.bool_)
        self._columns = RolloutColumns(observations, np.zeros((num_steps, num_envs)), *self._ends)
        self._num_ended = 0  # In the last row.

    def reset(self) -> None:
        self._envs.reset(seed=SEED)
        self._num_ended = 0

    def sweep(self) -> tuple[int, int]:
        """Return how many episodes have ended, and how many of them in the last row."""
        self._envs.rollout(next(self._actions), self._columns)
        ended = np.logical_or(*self._ends)
        return int(np.count_nonzero(ended)), int(np.count_nonzero(ended[-1]))

    def count(self, sweeps: Sequence[tuple[int, int]]) -> int:
        num_rows = 0
        for num_ended, num_last in sweeps:  # The row after an end resets.
            num_rows += self._shape[0] * self._shape[1] - (self._num_ended + num_ended - num_last)
            self._num_ended = num_last
        return num_rows

    def close(self) -> None:
        self._envs.close()


def _kernel(form: str, setup: Setup, mine: range) -> KernelStepper:
    """Make the envs `mine` of a kernel."""
    mode = "vector_entry_point"
    envs: Any = gymnasium.make_vec(kernel_of(form, setup.env), len(mine), vectorization_mode=mode, first_env=mine.start)
    rows = np.stack(actions_of(envs.single_action_space, setup.num_envs))[:, mine.start : mine.stop]
    length = min(max(LEAST_LENGTH, auto_length(KERNEL_ROW_NBYTES * len(mine), 1)), len(rows))
    return KernelStepper(envs, [np.ascontiguousarray(rows[at : at + length]) for at in range(0, len(rows), length)])


def numba(setup: Setup) -> OnAllCores:
    """Make the Numba kernel in a process for each core."""
    return OnAllCores(setup, partial(_kernel, "numba"))


def torch(setup: Setup) -> OnAllCores:
    """Make the torch kernel, on the CPU, in a process for each core."""
    return OnAllCores(setup, partial(_kernel, "torch"))
