"""CartPole as one vector env: its table of states, on whichever device steps it."""

import warnings
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium.spaces import Box, Discrete

from mpi_rollout.envs.kernels.single import (
    HIGH,
    MOST_ENVS,
    MOST_SEED,
    check,
    is_semi_implicit,
    key_words,
    philox,
    start_value,
)
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.envs.slice_env import SliceVectorEnv
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.world import claimed_local_rank, claimed_local_size

LONGEST = 2**31 - 1  # Steps are counted in 32 bits.
# The module and its class, and what it takes besides a task.  A device's name is that of the extra it needs, too.
DEVICES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "numba": ("numba_cpu", "NumbaDevice", ()),
    "torch": ("torch_tensors", "TorchDevice", ("device",)),
    "cuda": ("numba_cuda", "CUDADevice", ("device", "threads_per_block")),
}


class Task(NamedTuple):
    """A CartPole, and how many envs of it; `first_env` is the index of the first one among all envs of a job."""

    num_envs: int = 1
    first_env: int = 0
    max_episode_steps: int = 500
    is_semi_implicit: bool = False
    sutton_barto_reward: bool = False


class Table(NamedTuple):
    """The envs' states, with a column for each env: arrays of NumPy, of torch or of a CUDA device."""

    states: Any  # (4, num_envs) float64: x, x_dot, theta, theta_dot.
    steps: Any  # (num_envs,) int32, of the running episode.
    episodes: Any  # (num_envs,) int64, the numbers of the running episodes.
    ended: Any  # (num_envs,) bool: the next step begins another episode.


def new_table(num_envs: int) -> Table:
    """Return a table of zeros."""
    counts = np.zeros(num_envs, np.int32), np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)
    return Table(np.zeros((4, num_envs)), *counts)


class Device(Protocol):
    """What steps the envs of a task; `key` is that of all random numbers."""

    key: tuple[int, int]

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps, as `SliceVectorEnv.rollout`."""

    def get(self) -> Table:
        """Return the table as NumPy's arrays, which may be the device's own."""

    def put(self, table: Table) -> None:
        """Take a table that `get` has returned, and that has changed."""


class CartPoleBackend:
    """A `slice_env.Backend` over a device."""

    name, takes_uint8 = "CartPole", True
    most_seed: float = MOST_SEED

    def __init__(self, task: Task, device: Device) -> None:
        self._first_env, self._device, self.rollout = task.first_env, device, device.rollout

    def begin(self, seed: int, chosen: np.ndarray, episodes: np.ndarray) -> None:
        self._device.key = key_words(seed)
        table, envs = self._device.get(), np.flatnonzero(chosen)
        indices = self._first_env + envs
        words = philox(indices, episodes[envs], indices * 0, indices * 0, *self._device.key)
        for array, values in zip(table, (start_value(np.stack(words)), 0, episodes[envs], False), strict=True):
            array[..., envs] = values
        self._device.put(table)

    def observations(self) -> np.ndarray:
        return np.array(self._device.get().states.T, np.float32, order="C")

    def episodes(self) -> np.ndarray:
        return self._device.get().episodes.copy()

    def compile_steps(self, has_observations: bool) -> None:
        """Do nothing: devices compile when they are made."""


def make_envs(
    device_kind: str,
    num_envs: int = 1,
    seed: int = 0,
    first_env: int = 0,
    max_episode_steps: int = 500,
    kinematics_integrator: str = "euler",
    sutton_barto_reward: bool = False,
    device: str | int | None = None,
    threads_per_block: int | None = None,
) -> SliceVectorEnv:
    """Make envs with the spaces, dynamics, rewards and ends of Gymnasium's CartPole-v1, and other random numbers.

    `device_kind` is one of `DEVICES`.  See docs/how-to/native-envs.md for the others.

    Raises
    ------
    UsageError
        A package is missing, or an argument is wrong.
    """
    num_envs = check("num_envs", num_envs, 1, MOST_ENVS)
    first_env = check("first_env", first_env, 0, MOST_ENVS - num_envs)
    limit = check("max_episode_steps", max_episode_steps, 1, LONGEST)
    task = Task(num_envs, first_env, limit, is_semi_implicit(kinematics_integrator), bool(sutton_barto_reward))
    made = make_device(device_kind, task, device=device, threads_per_block=threads_per_block)
    indices = range(first_env, first_env + num_envs)
    return SliceVectorEnv(CartPoleBackend(task, made), indices, seed, Box(-HIGH, HIGH), Discrete(2))


def make_device(kind: str, task: Task, **options: object) -> Device:
    """Make what steps the envs of a task.  Options that are None are left out."""
    module, class_name, taken = DEVICES[kind]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() - set(taken):
        raise UsageError(f"CartPole on {kind} takes no {name}, got {given[name]!r}")
    try:
        device_class = getattr(import_module(f"mpi_rollout.envs.kernels.{module}"), class_name)
    except ImportError as error:
        raise UsageError(f"CartPole on {kind} needs a package ({error}); pip install 'mpi_rollout[{kind}]'") from error
    made: Device = device_class(task, **given)
    return made


def own_device(num_devices: int) -> int | None:
    """Return which of a host's devices is this rank's, by its number among the ranks there; None if there is one only.

    Where a launcher shows each rank one device, that is the only one.
    """
    if num_devices < 2:
        return None
    if claimed_local_size() > num_devices:
        warnings.warn(f"{claimed_local_size()} ranks of this host share {num_devices} devices", stacklevel=2)
    return claimed_local_rank() % num_devices


numba_envs, torch_envs, cuda_envs = (partial(make_envs, kind) for kind in DEVICES)
