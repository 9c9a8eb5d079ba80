"""CartPole: its random numbers and dynamics, one env in Python, and the vector env over a table of states.

Numba, CUDA and torch step the table; each has a module, which takes the functions of this one.  These take Python's
numbers, arrays and tensors, and are what Numba compiles.  The dynamics are those of Barto, Sutton and Anderson (1983),
with the constants and the operations of Gymnasium: additions, multiplications and divisions only.  So each machine
gives the same bits, as long as its compiler fuses no multiplication with an addition, which those for CPUs never do.
"""

import math
import os
from functools import partial
from importlib import import_module
from typing import Generic, NamedTuple, Protocol, TypeVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete

from mpi_rollout.envs.inputs import Info, OptionsOfOne
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.envs.slice_env import SliceVectorEnv, checked_integer
from mpi_rollout.errors import ActionError, UsageError
from mpi_rollout.exchange.world import claimed_local_rank, claimed_local_size
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.text import counted, pip_install

WORD = 0xFFFFFFFF
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
NUM_ROUNDS = 10

GRAVITY = 9.8
MASS_POLE = 0.1
TOTAL_MASS = MASS_POLE + 1.0
HALF_LENGTH = 0.5
POLE_MASS_LENGTH = MASS_POLE * HALF_LENGTH
FORCE = 10.0
TAU = 0.02  # Seconds.
X_LIMIT = 2.4
THETA_LIMIT = 12 * 2 * math.pi / 360
RESET_BOUND = 0.05

MOST_SEED = 2**64 - 1
MOST_ENVS = 2**32  # The index of an env is one word of a counter.
LONGEST = 2**31 - 1  # Steps are counted in 32 bits.
HIGH = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], np.float32)
# By the extra that brings the package: the module, whose `make_device` makes a `Device`.
MODULES = {"numba": "numba_cpu", "torch": "torch_tensors", "cuda": "numba_cuda"}
check = partial(checked_integer, "CartPole")


def philox(word_0, word_1, word_2, word_3, key_0, key_1):
    """Return the four 32-bit words of one block of Philox4x32-10 (Salmon et al. 2011, "Random123").

    The words of the counter are integers from 0 to 2**32 - 1, or arrays or tensors of int64 with such values: for an
    episode's beginning the index of the env, the number of the episode, 0 and 0.  Products of two words wrap around in
    a signed 64-bit integer, and the words that the masks take are right all the same.
    """
    for _ in range(NUM_ROUNDS):
        product_0, product_1 = MULTIPLIER_0 * word_0, MULTIPLIER_1 * word_2
        word_0, word_2 = ((product_1 >> 32) & WORD) ^ word_1 ^ key_0, ((product_0 >> 32) & WORD) ^ word_3 ^ key_1
        word_1, word_3 = product_1 & WORD, product_0 & WORD
        key_0, key_1 = (key_0 + WEYL_0) & WORD, (key_1 + WEYL_1) & WORD
    return word_0, word_1, word_2, word_3


def key_words(seed: int) -> tuple[int, int]:
    """Return the key of a seed, 0 <= seed < 2**64: its low and its high 32 bits."""
    return seed & WORD, seed >> 32


def start_value(word):
    """Return a value of an episode's first state, uniform in (-0.05, 0.05), from a random 32-bit word."""
    return (word + 0.5) * (2.0**-32 * (2.0 * RESET_BOUND)) - RESET_BOUND


def moved(x, x_dot, theta, theta_dot, action):
    """Return the state `TAU` seconds later, under action 0 (push to the left) or 1 (to the right).

    Sine and cosine are Taylor polynomials of degree 11 and 12.  For |theta| <= 0.2095, beyond which an episode has
    ended, they differ from the C library's by one unit in the last place at most, in less than one of a hundred values.
    """
    square = theta * theta
    sine = theta + theta * square * (
        -1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880 + square * (-1 / 39916800))))
    )
    tail = 1 / 24 + square * (-1 / 720 + square * (1 / 40320 + square * (-1 / 3628800 + square * (1 / 479001600))))
    cosine = 1.0 - (square * 0.5 - square * square * tail)
    force = action * (2.0 * FORCE) - FORCE
    push = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sine) / TOTAL_MASS
    inertia = HALF_LENGTH * (4.0 / 3.0 - MASS_POLE * (cosine * cosine) / TOTAL_MASS)
    theta_acc = (GRAVITY * sine - cosine * push) / inertia
    x_acc = push - POLE_MASS_LENGTH * theta_acc * cosine / TOTAL_MASS
    return x + TAU * x_dot, x_dot + TAU * x_acc, theta + TAU * theta_dot, theta_dot + TAU * theta_acc


def is_outside(x, theta):
    """Tell whether the cart has left its track, or the pole has fallen."""
    return (x < -X_LIMIT) | (x > X_LIMIT) | (theta < -THETA_LIMIT) | (theta > THETA_LIMIT)


class CartPoleEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One env of `make_envs`, with the same arguments and bytes; it needs neither Numba nor torch.

    `reset` begins its next episode, or episode 0 of another seed.  It has no time limit: `gymnasium.make` adds one.
    `first_env` is its index among all envs of a job; `device` is not used.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        seed: int = 0,
        first_env: int = 0,
        sutton_barto_reward: bool = False,
        device: str | int | None = None,
    ) -> None:
        self.observation_space, self.action_space = Box(-HIGH, HIGH), Discrete(2)
        self._key = key_words(check("seed", seed, 0, MOST_SEED))
        self._env_index = check("first_env", first_env, 0, MOST_ENVS - 1)
        self._is_sutton_barto = bool(sutton_barto_reward)
        self._episode, self._is_running = -1, False
        self._state: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._key, self._episode = key_words(check("seed", seed, 0, MOST_SEED)), -1
        self._episode, self._is_running = self._episode + 1, True
        self._state = tuple(map(start_value, philox(self._env_index, self._episode, 0, 0, *self._key)))
        return np.array(self._state, np.float32), {}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, Info]:
        if not self._is_running:
            raise ResetNeeded("reset the env before the first step of an episode")
        if not self.action_space.contains(action):
            raise ActionError(f"the action must be 0 or 1, got {action!r}")
        x, x_dot, theta, theta_dot = self._state
        self._state = moved(x, x_dot, theta, theta_dot, int(action))
        terminated = is_outside(self._state[0], self._state[2])
        self._is_running = not terminated
        reward = 0.0 - terminated if self._is_sutton_barto else 1.0
        return np.array(self._state, np.float32), reward, terminated, False, {}


class CartPoles(NamedTuple):
    """What the envs of a slice have in common; `first_env` is the index of the first one among all envs of a job."""

    num_envs: int
    first_env: int
    max_episode_steps: int
    sutton_barto_reward: bool


Array = TypeVar("Array")


class Table(NamedTuple, Generic[Array]):
    """The envs' states, with a column for each env: arrays of NumPy, of torch or of a CUDA device."""

    states: Array  # (4, num_envs) float64: x, x_dot, theta, theta_dot.
    steps: Array  # (num_envs,) int32, of the running episode.
    episodes: Array  # (num_envs,) int64, the numbers of the running episodes.
    ended: Array  # (num_envs,) bool: the next step begins another episode.


def new_table(num_envs: int) -> Table[np.ndarray]:
    """Return a table of zeros."""
    counts = np.zeros(num_envs, np.int32), np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)
    return Table(np.zeros((4, num_envs)), *counts)


class Device(Protocol):
    """Steps `CartPoles`; `key` is that of all random numbers."""

    key: tuple[int, int]

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps, as `SliceVectorEnv.rollout`."""

    def get(self) -> Table[np.ndarray]:
        """Return the table as NumPy's arrays, which may be the device's own."""

    def put(self, table: Table[np.ndarray]) -> None:
        """Take a table that `get` has returned, and that has changed."""


class CartPoleBackend:
    """A `slice_env.Backend` over a device."""

    name, takes_uint8 = "CartPole", True
    most_seed: float = MOST_SEED

    def __init__(self, first_env: int, device: Device) -> None:
        self._first_env, self._device, self.rollout = first_env, device, device.rollout

    def begin(self, seed: int, chosen: np.ndarray, episodes: np.ndarray) -> None:
        self._device.key = key_words(seed)
        table, envs = self._device.get(), np.flatnonzero(chosen)
        words = philox(self._first_env + envs, episodes[envs], 0, 0, *self._device.key)
        for array, values in zip(table, (start_value(np.stack(words)), 0, episodes[envs], False), strict=True):
            array[..., envs] = values
        self._device.put(table)

    def observations(self) -> np.ndarray:
        return np.array(self._device.get().states.T, np.float32, order="C")

    def episodes(self) -> np.ndarray:
        return self._device.get().episodes.copy()

    def compile_steps(self, has_observations: bool) -> bool:
        """Do nothing: devices compile when they are made, and compute each env by itself."""
        return True


def make_envs(
    kind: str,
    num_envs: int = 1,
    seed: int = 0,
    first_env: int = 0,
    max_episode_steps: int = 500,
    sutton_barto_reward: bool = False,
    device: str | int | None = None,
) -> SliceVectorEnv:
    """Make envs with the spaces, dynamics, rewards and ends of Gymnasium's CartPole-v1, and other random numbers.

    See docs/how-to/native-envs.md for the devices.

    Raises
    ------
    UsageError
        An argument is wrong, or a package is missing.
    """
    num_envs = check("num_envs", num_envs, 1, MOST_ENVS)
    first_env = check("first_env", first_env, 0, MOST_ENVS - num_envs)
    limit = check("max_episode_steps", max_episode_steps, 1, LONGEST)
    try:
        module = import_module(f"mpi_rollout.envs.kernels.{MODULES[kind]}")
    except ImportError as error:
        raise UsageError(f"CartPole on {kind} needs a package ({error}); {pip_install(f'[{kind}]')}") from error
    backend = CartPoleBackend(
        first_env, module.make_device(CartPoles(num_envs, first_env, limit, bool(sutton_barto_reward)), device)
    )
    return SliceVectorEnv(backend, range(first_env, first_env + num_envs), seed, Box(-HIGH, HIGH), Discrete(2))


numba_envs, torch_envs, cuda_envs = (partial(make_envs, kind) for kind in MODULES)


def own_device(num_devices: int) -> int | None:
    """Return which of a host's devices is this rank's, by its number among the ranks there; None if there is one only.

    Where a launcher shows each rank one device, that is the only one.
    """
    if num_devices < 2:
        return None
    if claimed_local_size() > num_devices:
        host = f"host {os.uname().nodename}"  # Notices of one host are one line.
        NOTICES.note(host, f"{claimed_local_size()} ranks share {counted(num_devices, 'device')}")
    return claimed_local_rank() % num_devices
