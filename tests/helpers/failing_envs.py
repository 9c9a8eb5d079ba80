"""Envs, factories and policies that fail, each in a way of its own; `envs.Failing` has the ways of an env's step."""

import ctypes
import hashlib
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
from envs import FAILURES, Counting, Failing, Image, Nested
from gymnasium import spaces

from mpi_rollout.process.rank_variables import claimed_rank
from mpi_rollout.ranks.rank_control import RankControl

RANK = claimed_rank()
FAILED_AT = Path("failed_at")  # In the job's folder: when the first env failed, as seconds since 1970.


def failing(how, rank=None, after=2, image=True):
    """An env that fails in every step after `after`, on all ranks or on one, and writes down when."""
    good, bad = (Image, TimedImage) if image else (Counting, Timed)
    return bad(how, after) if rank in (None, RANK) else good()


def dying(after, how="kill"):
    """An env that ends its process; `after` has the steps after which it does so, by rank, the first env's."""
    return TimedNested(how, after[str(RANK)]) if str(RANK) in after else Nested()


def dying_and_failing(killed_after, failing_after):
    """An env that ends its process on rank 1, and raises on rank 2, each after some steps."""
    hows = {1: ("kill", killed_after), 2: ("raise", failing_after)}
    return TimedNested(*hows[RANK]) if RANK in hows else Nested()


def report(control):
    os._exit(3)


class Leaving(Image):
    """Ends its process on one rank, in something else than a step."""

    made = 0

    def __init__(self, rank, when):
        super().__init__()
        self.when = when if rank == RANK else ""
        Leaving.made += 1
        if self.when == "making" or (self.when == "bare" and Leaving.made > 2):  # Of 6 envs on 3 ranks.
            os._exit(3)
        if self.when == "reporting":
            RankControl.report = report

    def reset(self, *, seed=None, options=None):
        if self.when == "first reset":
            os._exit(3)
        return super().reset(seed=seed, options=options)

    def close(self):
        if self.when == "closing":
            os._exit(3)


def by_rank(hows, after=2):
    """An env that fails in another way on each rank; None is not at all."""
    return Image() if hows[RANK] is None else TimedImage(hows[RANK], after)


def paced(sleep_s):
    """An env that takes some time for a step and never fails."""
    return TimedImage("raise", 10**9, sleep_s)


class Timed(Failing):
    """Writes down when it fails, if it is the first."""

    def step(self, action):
        if self.total >= self.after and self.how != "long" and not FAILED_AT.exists():
            FAILED_AT.write_text(str(time.time()))
        return super().step(action)


class TimedImage(Timed, Image):
    """The same with observations so large that a block of the file is full after 256 steps of 6 envs."""


class TimedNested(Timed, Nested):
    """The same with spaces of all kinds."""


def slow():
    """An env that never fails, taking some time for a step; says when the first steps are taken."""
    return Slow("raise", 10**9, 0.0003)


class Slow(Timed, Image):
    def step(self, action):
        if self.total == 2:
            Path("stepping").touch()
        return super().step(action)


class InReset(Image):
    """Fails in the reset that starts its episode number `episode`."""

    def __init__(self, episode=0):
        super().__init__()
        self.bad_episode = episode

    def reset(self, *, seed=None, options=None):
        if self.episode + 1 == self.bad_episode:
            FAILED_AT.write_text(str(time.time()))
            raise FileNotFoundError("there is no map of this level")
        return super().reset(seed=seed, options=options)


def importing():
    """What an env's constructor does whose package is of another version."""
    raise ImportError("cannot import name 'physics' from 'simulator'")


def adding():
    """What an env's constructor does that has a mistake."""
    return 1 + "one"


def forgetful():
    """Makes an env and does not return it."""
    Image()


def unlicensed(rank=None):
    """Cannot be made, on all ranks or on one."""
    if rank is None or rank == RANK:
        raise PermissionError("no licence")
    return Image()


def leaving():
    """Ends the process that wants to make it."""
    sys.exit(0)


def limited(nbytes):
    """An env of a process that may write so many bytes to one file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    return Image()


def _stepped(outputs_to, index):
    def outcome(env, action):
        outputs = list(Counting.step(env, action))
        outputs[index] = outputs_to(outputs[index])
        return tuple(outputs)

    return outcome


FAILURES |= {
    "segfault": lambda env, action: ctypes.string_at(0),
    "kill": lambda env, action: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda env, action: time.sleep(1000),
    "hold the lock": lambda env, action: ctypes.PyDLL(None).sleep(1000),
    "work in C": lambda env, action: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1),
    "long": lambda env, action: time.sleep(60.0) or Counting.step(env, action),
    "as_list": _stepped(np.ndarray.tolist, 0),
    "four": lambda env, action: Counting.step(env, action)[:4],
}


class Continuous(Counting):
    """Takes two numbers from -1 to 1."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action):
        return super().step(2 + np.abs(action).sum())


class Policy:
    """A good policy for `Continuous` up to the call number `after`, then what `then` makes of its actions."""

    def __init__(self, then, after):
        self.then, self.after, self.calls = then, after, 0

    def __call__(self, observations):
        actions = np.full((len(observations), 2), 0.5, np.float32)
        self.calls += 1
        return actions if self.calls <= self.after else self.then(actions)


def diverge(actions):
    FAILED_AT.write_text(str(time.time()))
    raise ArithmeticError("the network has diverged")


def with_nan(actions):
    actions[3, 1] = np.nan
    return actions


def with_large(actions):
    actions[2, 0] = 1.5
    return actions


raises, raises_later = Policy(diverge, 0), Policy(diverge, 7)
short_later = Policy(lambda actions: actions[:-1], 7)
whole_later = Policy(lambda actions: actions.astype(complex), 7)
nan_later, large_later = Policy(with_nan, 7), Policy(with_large, 7)
nothing_later = Policy(lambda actions: None, 7)
number = 3


def once_on_rank_1(made=[]):  # noqa: B006  The list counts over calls.
    """An env of which rank 1 can make its own, but no second set for measuring the limit."""
    made.append(1)
    if RANK == 1 and len(made) > 3:
        raise RuntimeError("no second licence")
    return Counting()


class Unclosable(Counting):
    """Runs well, but does not close."""

    def close(self):
        raise RuntimeError("the port is stuck")


def exiting_late(observations, calls=[]):  # noqa: B006
    """A policy that calls sys.exit in the fourth step."""
    calls.append(1)
    if len(calls) > 3:
        sys.exit(0)
    return np.zeros(len(observations), np.int64)
