"""What tests have a child do: hang, crash, ask others to stop."""

import os
import signal
import time
from collections.abc import Callable

import numpy as np

from mpi_rollout.errors import StorageError
from mpi_rollout.storage.sandbox import BLOCKED_SIGNALS

Tell = Callable[[str], None]


def hang(tell: Tell, path: str) -> None:
    tell("reading its middle")
    time.sleep(600)


def die(tell: Tell, path: str, number: int) -> None:
    tell("reading its end")
    os.kill(os.getpid(), number)


def ask_myself(tell: Tell, path: str) -> str:
    for number in BLOCKED_SIGNALS:
        os.kill(os.getpid(), number)
    return "whole"


def ask_my_group(tell: Tell, path: str) -> None:
    tell("reading its middle")
    os.killpg(0, signal.SIGUSR1)
    time.sleep(600)


def err(tell: Tell, path: str) -> None:
    tell("reading its end")
    {}["a mistake of ours"]


def leave(tell: Tell, path: str) -> None:
    os._exit(0)


class CrashesInItsEnd:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


def refuse_amid_writing(tell: Tell, path: str) -> None:
    file = CrashesInItsEnd()  # As HDF5 does, on a disk that is full.
    raise StorageError(f"cannot write {path} with {type(file).__name__}")


def fill_memory(tell: Tell, path: str) -> int:
    return int(np.ones(2**31, np.uint8).sum())
