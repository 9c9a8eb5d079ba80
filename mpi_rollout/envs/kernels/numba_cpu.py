"""CartPole on one CPU core: Numba compiles it into vector instructions.

Envs are stepped in blocks whose states stay in the first cache.  Each pass over a block does one thing to all of its
envs, without a branch.  The few envs that begin an episode are gone through by a list of their places.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from inspect import getsource
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numba import njit, types
from numpy.lib.stride_tricks import as_strided

from mpi_rollout.envs.kernels import cartpole
from mpi_rollout.envs.kernels.cartpole import CartPoles, Table, new_table
from mpi_rollout.envs.rollout import RolloutColumns, has_rows
from mpi_rollout.errors import UsageError

BLOCK = 256
LONGEST_COMPILING_S = 60.0  # On a busy machine; alone it takes about 4 s.
# Without NumPy's error model each division has a branch, and nothing is vectorized.
OPTIONS: Any = {"error_model": "numpy", "nogil": True, "fastmath": False}
_compiled = njit(**OPTIONS)
_moved, _is_outside = _compiled(cartpole.moved), _compiled(cartpole.is_outside)
_philox, _start_value = _compiled(cartpole.philox), _compiled(cartpole.start_value)

ACTIONS, OBSERVATIONS, REWARDS, TERMINATIONS, TRUNCATIONS = range(5)  # The flat arrays that rows are in.
# Places in `settings`, where the key has two.
FIRST_ENV, MAX_EPISODE_STEPS, IS_SUTTON_BARTO, KEY = range(4)
# states, steps, episodes, ended, settings, num_rows; rows, those of actions read-only; their pitches.
SIGNATURE = types.void(
    *(types.float64[:, ::1], types.int32[::1], types.int64[::1], types.uint8[::1], types.int64[::1], types.int64),
    types.Array(types.uint8, 1, "C", readonly=True),
    *(types.float32[::1], types.float64[::1], types.uint8[::1], types.uint8[::1], types.int64[::1]),
)
Rows = tuple[np.ndarray, int]  # Row t begins at element t * pitch of a flat array; between rows are those of others.


@_compiled
def _places_of(ended, places):
    """Write the places of envs that have ended into `places`, and return these."""
    count = 0
    for place in range(len(ended)):
        places[count] = place
        count += ended[place]
    return places[:count]


@_compiled
def _convert(actions, source):
    """Convert actions to floats in a pass of its own: those of 8 bits are a tenth of the memory that a step needs."""
    for env in range(len(source)):
        actions[env] = source[env]


@_compiled
def _move(states, actions):
    x, x_dot, theta, theta_dot = states
    for env in range(len(x)):
        state = x[env], x_dot[env], theta[env], theta_dot[env]
        x[env], x_dot[env], theta[env], theta_dot[env] = _moved(*state, actions[env])


@_compiled
def _end(states, steps, max_episode_steps, terminations, truncations):
    x, _, theta, _ = states
    for env in range(len(x)):
        terminations[env] = _is_outside(x[env], theta[env])
    for env in range(len(x)):
        steps[env] += 1
        truncations[env] = steps[env] >= max_episode_steps


@_compiled
def _begin(places, states, steps, episodes, first_env, key_0, key_1, terminations, truncations):
    """Begin the next episodes of these envs."""
    x, x_dot, theta, theta_dot = states
    for env in places:
        episodes[env] += 1
        words = _philox(first_env + env, episodes[env], 0, 0, key_0, key_1)
        x[env], x_dot[env] = _start_value(words[0]), _start_value(words[1])
        theta[env], theta_dot[env] = _start_value(words[2]), _start_value(words[3])
        steps[env] = terminations[env] = truncations[env] = 0


@_compiled
def _reward(rewards, ended, terminations, is_sutton_barto):
    """Write the rewards; `ended` still says which envs had ended before this step."""
    if is_sutton_barto:
        for env in range(len(rewards)):
            rewards[env] = 0.0 - terminations[env]
    else:
        for env in range(len(rewards)):
            rewards[env] = 1 - ended[env]


@_compiled
def _observe(observations, states):
    x, x_dot, theta, theta_dot = states
    for env in range(len(x)):
        observations[4 * env] = x[env]
        observations[4 * env + 1] = x_dot[env]
        observations[4 * env + 2] = theta[env]
        observations[4 * env + 3] = theta_dot[env]


@_compiled
def _row(flat, pitch, row, start, stop):
    begin = row * pitch
    return flat[begin + start : begin + stop]


def _kernel(fingerprint: int) -> Callable[..., None]:
    """Return the function for Numba.  Its cache tells versions apart by a closure's values, not by its helpers."""

    def rollout(
        all_states, all_steps, all_episodes, all_ended, settings, num_rows,
        actions, observations, rewards, terminations, truncations, pitches,
    ):  # fmt: skip
        _ = fingerprint
        first_env, max_episode_steps = settings[FIRST_ENV], settings[MAX_EPISODE_STEPS]
        is_sutton_barto, key_0, key_1 = settings[IS_SUTTON_BARTO], settings[KEY], settings[KEY + 1]
        all_places, converted = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.float64)
        for start in range(0, len(all_steps), BLOCK):
            stop = min(start + BLOCK, len(all_steps))
            x, x_dot, theta, theta_dot = all_states
            states = x[start:stop], x_dot[start:stop], theta[start:stop], theta_dot[start:stop]
            steps, episodes, ended = all_steps[start:stop], all_episodes[start:stop], all_ended[start:stop]
            for row in range(num_rows):
                terminated = _row(terminations, pitches[TERMINATIONS], row, start, stop)
                truncated = _row(truncations, pitches[TRUNCATIONS], row, start, stop)
                places = _places_of(ended, all_places)
                _convert(converted, _row(actions, pitches[ACTIONS], row, start, stop))
                _move(states, converted)
                _end(states, steps, max_episode_steps, terminated, truncated)
                _begin(places, states, steps, episodes, first_env + start, key_0, key_1, terminated, truncated)
                if len(observations):
                    _observe(_row(observations, pitches[OBSERVATIONS], row, 4 * start, 4 * stop), states)
                if len(rewards):
                    _reward(_row(rewards, pitches[REWARDS], row, start, stop), ended, terminated, is_sutton_barto)
                for env in range(len(ended)):
                    ended[env] = terminated[env] | truncated[env]

    return rollout


@cache
def compiled_kernel() -> Callable[..., None]:
    """Return the compiled kernel: from Numba's cache, or after some seconds.

    Where no cache can be written, each process compiles for itself.
    """
    try:
        fingerprint = int.from_bytes(hashlib.sha256(getsource(cartpole).encode()).digest()[:7], "big")
        kernel = njit(cache=True, **OPTIONS)(_kernel(fingerprint))
        with _first_compiles(Path(kernel.stats.cache_path)):
            kernel.compile(SIGNATURE)
        return kernel
    except OSError:  # The disk is full, or there are no sources.
        pass
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    return njit(SIGNATURE, **OPTIONS)(_kernel(0))


@contextmanager
def _first_compiles(folder: Path) -> Iterator[None]:
    """Let the other processes that come here wait while the first one compiles; together they then load the result.

    They wait for `LONGEST_COMPILING_S` at most, since the first one may be stopped.  Where there are no locks, nobody
    waits.
    """
    with (folder / f"mpi_rollout-{os.getuid()}.lock").open("ab") as file:
        until, how = monotonic() + LONGEST_COMPILING_S, fcntl.LOCK_EX
        with suppress(OSError):
            while monotonic() < until:
                try:
                    fcntl.flock(file, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    how = fcntl.LOCK_SH
                    sleep(0.05)
        yield


class NumbaDevice:
    """The envs on one core."""

    def __init__(self, poles: CartPoles, device: object) -> None:
        if device is not None:
            raise UsageError(f"CartPole on numba takes no device, got {device!r}")
        self._kernel, self._table, self.key = compiled_kernel(), new_table(poles.num_envs), (0, 0)
        self._settings = np.array([*poles[1:], 0, 0], np.int64)
        flags = np.zeros((2, poles.num_envs), np.uint8)  # They are always written.
        self._unread = [(array, 0) for array in (np.zeros(0, np.float32), np.zeros(0), *flags)]
        self._states = *self._table[:3], self._table.ended.view(np.uint8), self._settings
        self._layouts: WeakKeyDictionary[RolloutColumns, tuple[list[np.ndarray], np.ndarray]] = WeakKeyDictionary()

    def get(self) -> Table[np.ndarray]:
        return self._table

    def put(self, table: Table[np.ndarray]) -> None:
        self._settings[KEY:] = self.key

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        layout = self._layouts.get(columns)
        if layout is None:
            layout = self._layouts[columns] = self._layout(columns)
        outputs, pitches = layout
        actions = actions.astype(np.uint8, copy=False)  # One byte of eight is enough: they are 0 and 1.
        flat, pitches[ACTIONS] = _rows_of(actions if has_rows(actions) else np.ascontiguousarray(actions))
        self._kernel(*self._states, len(actions), flat, *outputs, pitches)

    def _layout(self, columns: RolloutColumns) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the flat arrays of outputs; the pitches of actions and of these."""
        arrays = columns.observations, columns.rewards, columns.terminations, columns.truncations
        rows = [none if array is None else _rows_of(array) for array, none in zip(arrays, self._unread, strict=True)]
        return [flat for flat, _ in rows], np.array([0, *(pitch for _, pitch in rows)])


def _rows_of(array: np.ndarray) -> Rows:
    """Return the rows of an array whose rows are C-contiguous, without a copy; bool becomes uint8."""
    array = array.view(np.uint8) if array.dtype == np.bool_ else array
    pitch = array.strides[0] // array.itemsize
    if array.flags.c_contiguous:
        return array.reshape(-1), pitch
    return as_strided(array, ((len(array) - 1) * pitch + array[0].size,), (array.itemsize,)), pitch


make_device = NumbaDevice
