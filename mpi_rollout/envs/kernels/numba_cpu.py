"""CartPole on one CPU core: Numba compiles it into vector instructions.

Envs are stepped in blocks whose states stay in the first cache.  Each pass over a block does one thing to all of its
envs, without a branch.  The few envs that begin an episode are gone through by a list of their places.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from inspect import getsource
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from weakref import WeakKeyDictionary

import numba
import numpy as np
from numba import njit, types

from mpi_rollout.envs.kernels import dynamics, philox
from mpi_rollout.envs.kernels.rows import Rows, rows_of
from mpi_rollout.envs.kernels.starts import start_states
from mpi_rollout.envs.kernels.task import Task
from mpi_rollout.envs.rollout import RolloutColumns

BLOCK = 256
LONGEST_COMPILING_S = 60.0  # It takes a quarter of that on a busy core.
# Without NumPy's error model each division has a branch, and nothing is vectorized.
OPTIONS: Any = {"error_model": "numpy", "nogil": True, "fastmath": False}
_compiled = njit(**OPTIONS)

_accelerations = _compiled(dynamics.accelerations)
_euler = _compiled(dynamics.euler)
_is_outside = _compiled(dynamics.is_outside)
_philox = _compiled(philox.philox)
_semi_implicit_euler = _compiled(dynamics.semi_implicit_euler)
_sine_cosine = _compiled(dynamics.sine_cosine)
_start_value = _compiled(dynamics.start_value)

# states, steps, episodes, ended, settings, num_rows; actions (64 and 8 bits), observations, rewards (64 and 32 bits),
# terminations, truncations; their pitches.
SIGNATURE = types.void(
    *(types.float64[:, ::1], types.int32[::1], types.int64[::1], types.uint8[::1], types.int64[::1], types.int64),
    *(types.Array(dtype, 1, "C", readonly=True) for dtype in (types.int64, types.uint8)),
    *(types.float32[::1], types.float64[::1], types.float32[::1], types.uint8[::1], types.uint8[::1]),
    types.int64[::1],
)
# Places in `settings`, where the key has two, and in `pitches`.
FIRST_ENV, MAX_EPISODE_STEPS, IS_SEMI_IMPLICIT, IS_SUTTON_BARTO, KEY = range(5)
ACTIONS, ACTIONS_8, OBSERVATIONS, REWARDS, REWARDS_32, TERMINATIONS, TRUNCATIONS = range(7)
Layout = tuple[tuple[np.ndarray, ...], np.ndarray]  # The flat arrays of outputs; the pitches of actions and of these.
NOBODY_READS = -1  # The pitch of rows that do not exist.


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
def _move(states, actions, is_semi_implicit):
    x, x_dot, theta, theta_dot = states
    if is_semi_implicit:
        for env in range(len(x)):
            sine, cosine = _sine_cosine(theta[env])
            x_acc, theta_acc = _accelerations(sine, cosine, theta_dot[env], actions[env])
            x[env], x_dot[env] = _semi_implicit_euler(x[env], x_dot[env], x_acc)
            theta[env], theta_dot[env] = _semi_implicit_euler(theta[env], theta_dot[env], theta_acc)
    else:
        for env in range(len(x)):
            sine, cosine = _sine_cosine(theta[env])
            x_acc, theta_acc = _accelerations(sine, cosine, theta_dot[env], actions[env])
            x[env], x_dot[env] = _euler(x[env], x_dot[env], x_acc)
            theta[env], theta_dot[env] = _euler(theta[env], theta_dot[env], theta_acc)


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
    """Begin the next episodes of these envs, in place of the steps that the other passes have taken."""
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
def _part(states, start, stop):
    return states[0, start:stop], states[1, start:stop], states[2, start:stop], states[3, start:stop]


@_compiled
def _row(flat, pitch, row, start, stop):
    begin = row * pitch
    return flat[begin + start : begin + stop]


def _kernel(fingerprint: int) -> Callable[..., None]:
    """Return what Numba compiles.  Its cache tells versions apart by what a closure holds, and not by its helpers."""

    def rollout(
        all_states, all_steps, all_episodes, all_ended, settings, num_rows,
        actions, actions_8, observations, rewards, rewards_32, terminations, truncations, pitches,
    ):  # fmt: skip
        _ = fingerprint
        first_env, max_episode_steps = settings[FIRST_ENV], settings[MAX_EPISODE_STEPS]
        is_semi_implicit, is_sutton_barto = settings[IS_SEMI_IMPLICIT], settings[IS_SUTTON_BARTO]
        key_0, key_1 = settings[KEY], settings[KEY + 1]
        all_places, converted = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.float64)
        for start in range(0, len(all_steps), BLOCK):
            stop = min(start + BLOCK, len(all_steps))
            states = _part(all_states, start, stop)
            steps, episodes, ended = all_steps[start:stop], all_episodes[start:stop], all_ended[start:stop]
            for row in range(num_rows):
                terminated = _row(terminations, pitches[TERMINATIONS], row, start, stop)
                truncated = _row(truncations, pitches[TRUNCATIONS], row, start, stop)
                places = _places_of(ended, all_places)
                if pitches[ACTIONS] != NOBODY_READS:
                    _convert(converted, _row(actions, pitches[ACTIONS], row, start, stop))
                else:
                    _convert(converted, _row(actions_8, pitches[ACTIONS_8], row, start, stop))
                _move(states, converted, is_semi_implicit)
                _end(states, steps, max_episode_steps, terminated, truncated)
                _begin(places, states, steps, episodes, first_env + start, key_0, key_1, terminated, truncated)
                if pitches[OBSERVATIONS] != NOBODY_READS:
                    _observe(_row(observations, pitches[OBSERVATIONS], row, 4 * start, 4 * stop), states)
                if pitches[REWARDS] != NOBODY_READS:
                    _reward(_row(rewards, pitches[REWARDS], row, start, stop), ended, terminated, is_sutton_barto)
                if pitches[REWARDS_32] != NOBODY_READS:
                    _reward(_row(rewards_32, pitches[REWARDS_32], row, start, stop), ended, terminated, is_sutton_barto)
                for env in range(len(ended)):
                    ended[env] = terminated[env] | truncated[env]

    return rollout


@cache
def compiled_kernel() -> Callable[..., None]:
    """Return the compiled kernel: from Numba's cache, or after some seconds.

    Where no cache can be written, each process compiles for itself.
    """
    compiler = partial(njit, SIGNATURE, **OPTIONS)
    try:
        fingerprint = _fingerprint()
        with _first_compiles(f"{fingerprint:x}-{numba.__version__}"):
            return compiler(cache=True)(_kernel(fingerprint))
    except OSError:  # The disk is full, or there are no sources.
        pass
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    return compiler()(_kernel(0))


def _fingerprint() -> int:
    """Return a number that changes with the sources of the helpers."""
    sources = "".join(map(getsource, (dynamics, philox)))
    return int.from_bytes(hashlib.sha256(sources.encode()).digest()[:7], "big")


@contextmanager
def _first_compiles(name: str) -> Iterator[None]:
    """Have other processes of this host wait while the first one compiles; they then load what it has made.

    They wait for `LONGEST_COMPILING_S` at most: the first one may be stopped.
    """
    path = Path(tempfile.gettempdir(), f"mpi_rollout-{os.getuid()}-{name}.compiled")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # Each compiles for itself.
        yield
        return
    with os.fdopen(descriptor, "r+b") as file:
        _lock(file.fileno())
        if os.fstat(file.fileno()).st_size:
            fcntl.flock(file, fcntl.LOCK_UN)
        yield
        if not os.fstat(file.fileno()).st_size:
            file.write(b"1")


def _lock(descriptor: int) -> None:
    """Take the lock, or go on without it when that takes too long."""
    until = monotonic() + LONGEST_COMPILING_S
    while monotonic() < until:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sleep(0.05)


class NumbaBackend:
    """The envs of a task on one core."""

    def __init__(self, task: Task) -> None:
        self._kernel = compiled_kernel()
        self._first_env, num_envs = task.first_env, task.num_envs
        self._states = np.zeros((4, num_envs))
        self._steps = np.zeros(num_envs, np.int32)
        self._episodes = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.uint8)
        facts = (task.first_env, task.max_episode_steps, task.is_semi_implicit, task.sutton_barto_reward, 0, 0)
        self._settings = np.array(facts, np.int64)
        self._unread = [Rows(flags, 0) for flags in np.zeros((2, num_envs), np.uint8)]  # Flags are always written.
        self._layouts: WeakKeyDictionary[RolloutColumns, Layout] = WeakKeyDictionary()

    def begin(self, key: tuple[int, int], envs: np.ndarray, episodes: np.ndarray) -> None:
        self._settings[KEY:] = key
        self._states[:, envs] = start_states(key, self._first_env + envs, episodes)
        self._episodes[envs] = episodes
        self._steps[envs] = 0
        self._ended[envs] = False

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        layout = self._layouts.get(columns)
        if layout is None:
            layout = self._layouts[columns] = self._layout(columns)
        outputs, pitches = layout
        is_narrow = actions.dtype == np.uint8
        wide, narrow = (_NONE_64, rows_of(actions)) if is_narrow else (rows_of(actions), _NONE_8)
        pitches[ACTIONS], pitches[ACTIONS_8] = wide.pitch, narrow.pitch
        self._kernel(
            self._states,
            self._steps,
            self._episodes,
            self._ended,
            self._settings,
            len(actions),
            wide.flat,
            narrow.flat,
            *outputs,
            pitches,
        )

    def _layout(self, columns: RolloutColumns) -> Layout:
        is_double = columns.rewards is not None and columns.rewards.dtype == np.float64
        outputs = (
            _rows_or_none(columns.observations, np.float32),
            _rows_or_none(columns.rewards if is_double else None, np.float64),
            _rows_or_none(None if is_double else columns.rewards, np.float32),
            self._unread[0] if columns.terminations is None else rows_of(columns.terminations),
            self._unread[1] if columns.truncations is None else rows_of(columns.truncations),
        )
        pitches = np.array([0, 0, *(rows.pitch for rows in outputs)])
        return tuple(rows.flat for rows in outputs), pitches

    def observations(self) -> np.ndarray:
        return np.ascontiguousarray(self._states.T, np.float32)

    def episodes(self) -> np.ndarray:
        return self._episodes.copy()


def _rows_or_none(array: np.ndarray | None, dtype: type) -> Rows:
    return Rows(np.zeros(0, dtype), NOBODY_READS) if array is None else rows_of(array)


_NONE_64, _NONE_8 = _rows_or_none(None, np.int64), _rows_or_none(None, np.uint8)
