"""What the backends of CartPole have in common: the task, and what each of them does."""

import warnings
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.world import claimed_local_rank, claimed_local_size

INTEGRATORS = {"euler": False, "semi-implicit euler": True}
LONGEST = 2**31 - 1  # Steps are counted in 32 bits.
NUM_SEEDS = 2**64
NUM_ENVS = 2**32  # The index of an env is one word of a counter.
EPISODES = 1  # The word of a counter that is the episode's number.


@dataclass(frozen=True)
class Task:
    """A CartPole, and how many envs of it.

    Parameters
    ----------
    first_env
        The index of the first of these envs among all envs of a job.
    """

    num_envs: int = 1
    first_env: int = 0
    max_episode_steps: int = 500
    is_semi_implicit: bool = False
    sutton_barto_reward: bool = False


class Backend(Protocol):
    """The states of the envs, and what changes them.  Its arguments are checked before."""

    def begin(self, key: tuple[int, int], envs: np.ndarray, episodes: np.ndarray) -> None:
        """Begin episodes of some envs, int64 arrays of the same length; from now on random numbers have this key."""

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps with actions (num_steps, num_envs) int64, of which each row is C-contiguous."""

    def observations(self) -> np.ndarray:
        """Return the observations (num_envs, 4) float32 in a new array."""

    def episodes(self) -> np.ndarray:
        """Return the numbers (num_envs,) int64 of the running episodes in a new array."""


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """Return an integer from `low` to `high`, or raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise UsageError(f"{name} of CartPole must be an integer from {low:,} to {high:,}, got {value!r}")
    return int(value)


def is_semi_implicit(kinematics_integrator: object) -> bool:
    """Return what an integrator's name means, or raise UsageError."""
    if not isinstance(kinematics_integrator, str) or kinematics_integrator not in INTEGRATORS:
        names = " or ".join(map(repr, INTEGRATORS))
        raise UsageError(f"kinematics_integrator of CartPole must be {names}, got {kinematics_integrator!r}")
    return INTEGRATORS[kinematics_integrator]


def own_device(num_devices: int) -> int | None:
    """Return which of a host's devices is this rank's, by its number among the ranks there; None if there is one only.

    Where a launcher shows each rank one device, that is the only one.
    """
    if num_devices < 2:
        return None
    if claimed_local_size() > num_devices:
        warnings.warn(f"{claimed_local_size()} ranks of this host share {num_devices} devices", stacklevel=2)
    return claimed_local_rank() % num_devices
