"""Envs and policies that end their process, or fork others, in ways of their own."""

import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from envs import Counting, Image
from failing_envs import RANK


def finalize():
    from mpi4py import MPI

    MPI.Finalize()


def raise_error():
    raise ValueError("in the child")


WAYS = {
    "os._exit(0)": lambda: os._exit(0),
    "exit()": lambda: ctypes.CDLL(None).exit(0),
    "MPI.Finalize()": finalize,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "wait": lambda: time.sleep(60),
    "hold the lock": lambda: ctypes.PyDLL(None).sleep(60),
}
CHILDREN = {"exit": (lambda: sys.exit(3), 3), "raise": (raise_error, 1), "return": (lambda: None, 70)}


class Departing(Image):
    """Does one of `WAYS` on one rank, in its third step or when it is made."""

    def __init__(self, how, rank, is_making=False):
        super().__init__()
        self.how, self.steps = how if rank == RANK else None, 0
        if is_making:
            self.depart()

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            self.depart()
        return super().step(action)

    def depart(self):
        if self.how is not None:
            Path("departing").touch()
            WAYS[self.how]()


def policy(observations):
    """Ends the process at its third call."""
    policy.calls = getattr(policy, "calls", 0) + 1
    if policy.calls == 3:
        os._exit(0)
    return np.full(len(observations), 2)


class Returned(BaseException):
    """A child is to return from the step."""


class Forking(Image):
    """Forks children that come back to the program; its reward is 1 where all ended alone, each with its own code."""

    def __init__(self):
        super().__init__()
        self.is_right = self.fork("exit")

    def step(self, action):
        observation, _, *rest = super().step(action)
        with suppress(Returned):
            self.is_right &= all(map(self.fork, CHILDREN)) and self.start()
        return observation, float(self.is_right), *rest

    def fork(self, how):
        come_back, code = CHILDREN[how]
        pid = os.fork()
        if pid == 0:
            come_back()
            raise Returned
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code

    def start(self):
        """Children of the standard library, one of which is told to end."""
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(30)
        return process.exitcode == -15 and subprocess.run(["false"]).returncode == 1


class Lingering(Image):
    """Keeps its process from ending, on each of some ranks in a way of its own."""

    def __init__(self, hows):
        super().__init__()
        self.how = hows.get(str(RANK))
        if self.how == "thread":
            threading.Thread(target=linger, name="viewer").start()
        if self.how == "atexit":
            atexit.register(linger)

    def __del__(self):
        if self.how == "del":
            linger()


def linger():
    time.sleep(1000)


class Closing(Image):
    """Does not come out of its `close` on some ranks."""

    def __init__(self, ranks):
        super().__init__()
        self.is_waiting = RANK in ranks

    def close(self):
        if self.is_waiting:
            WAYS["wait"]()


class Noting(Counting):
    """Leaves a file when it is closed."""

    def __init__(self, env_index: int):
        super().__init__()
        self.index = env_index

    def close(self):
        with open(f"closed.{self.index}", "a") as file:
            file.write("once\n")
