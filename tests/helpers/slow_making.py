"""Factories that hang: what makes a rank's envs, in Python and in C code that lets no thread of Python run."""

import ctypes
import time

from native_envs import Drift, drift


def asleep(env_indices: range, seed: int) -> Drift:
    if 0 not in env_indices:
        time.sleep(1000)
    return drift(env_indices, seed)


def locked(env_indices: range, seed: int) -> Drift:
    if 0 not in env_indices:
        ctypes.PyDLL(None).sleep(1000)
    return drift(env_indices, seed)
