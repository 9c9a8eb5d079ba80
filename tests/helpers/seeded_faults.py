"""Envs whose failures follow from their seeds: the same on any rank, in any start of a run."""

import ctypes
import hashlib
import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from stopping_envs import Policy

from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.process.rank_variables import claimed_rank

RANK = claimed_rank()


# Seeds of first episodes, which have no row in which a run could say that they failed.
FIRST = {next(episode_seeds(seed, index)) for seed in (3, 4) for index in range(8)}


def _raise():
    raise RuntimeError("the simulator has diverged")


WAYS = {
    "raise": _raise,
    "exit": lambda: exit(0),
    "stop": lambda: next(iter(())),
    "sleep": lambda: time.sleep(1000),
    "wait in C": lambda: ctypes.CDLL(None).pause(),
    "hold the lock": lambda: ctypes.PyDLL(None).sleep(1000),
    "work in C": lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1),
}


class Moody(gymnasium.Env):
    """Episodes of 5 to 12 steps, of which `share` are to fail in a step that their seed decides on.

    It observes the seed's last digits, the step and the last action; nothing else is remembered.

    Parameters
    ----------
    how
        One of `WAYS`, or "nan", "inf" (an observation that is not finite), "reward" (a reward that is not).
    resets
        The share of resets that fail, but for the first of an env.
    only
        On this rank alone; None is all.
    """

    observation_space = spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (3,), np.float32), "n": spaces.Discrete(100)})
    action_space = spaces.Discrete(3)

    def __init__(self, how="raise", share=0.5, resets=0.0, only=None):
        is_moody = only in (None, RANK)
        self.how, self.share, self.resets = how, share * is_moody, resets * is_moody

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        fails, fails_now = self.np_random.random(2)
        self.end, fails_at, self.seed = self.np_random.integers([5, 1, 0], [13, 5, 1000]).tolist()
        if fails_now < self.resets and seed not in FIRST:
            raise FileNotFoundError("there is no map of this level")
        self.num, self.fails_at = 0, fails_at if fails < self.share else 0
        return self.observe(0), {}

    def observe(self, action):
        return {"x": np.array([self.seed, self.num, action], np.float32), "n": self.num}

    def step(self, action):
        self.num += 1
        observation, reward = self.observe(action), float(action) / 3
        if self.num == self.fails_at:
            if self.how in WAYS:
                WAYS[self.how]()
            observation["x"][1] = {"nan": np.nan, "inf": -np.inf}.get(self.how, 1.0)
            reward = np.nan if self.how == "reward" else reward
        return observation, reward, self.num == self.end, False, {}


act = Policy(lambda observations: observations["x"][:, :2].sum(axis=1).astype(np.int64) % 3)


class Once(Moody):
    """Can be made once, and then not for want of a licence; or then has another space."""

    made = 0

    def __init__(self, then="raise", **kwargs):
        super().__init__(share=1.0, **kwargs)
        Once.made += 1
        if Once.made > 1 and then == "raise":
            raise PermissionError("no licence")
        if Once.made > 1:
            self.action_space = spaces.Discrete(4)


def slow(sleep_s=0.1):
    """Takes its time for a step, and never fails; takes none once there is a file `fast`."""
    env = Moody(share=0.0)
    if Path("fast").exists():
        return env
    step = env.step
    env.step = lambda action: (time.sleep(sleep_s), step(action))[1]
    return env


class Stuck(Moody):
    """Fails in each episode, and hangs or leaves when it is closed."""

    def __init__(self, closing="sleep", share=1.0, **kwargs):
        super().__init__(share=share, **kwargs)
        self.closing = closing

    def close(self):
        WAYS[self.closing]()


class Unlike(Moody):
    """Fails when its first episode is taken again after an interruption, in a step or in the reset."""

    def __init__(self, where="step"):
        super().__init__(share=0.0)
        self.where = where if os.environ.get("AGAIN") else ""

    def reset(self, *, seed=None, options=None):
        self.is_first = seed in FIRST
        if self.where == "reset" and self.is_first:
            raise ConnectionError("the licence server is busy")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.where == "step" and self.is_first and self.num == 2:
            raise ConnectionError("the licence server is busy")
        return super().step(action)
