"""Envs and policies that stop at a place which the environment gives, so that the command of a run stays the same.

STOP_AT is "HOW:PLACE": HOW is "raise", "kill" (this process, by SIGKILL), "usr1" or "term" (a signal to this
process).  A policy stops before its step number PLACE; an env before step STEP of the episode with seed SEED, PLACE
being "SEED-STEP".
"""

import os
import signal
import time
from itertools import islice

import envs
import gymnasium
import numpy as np
from gymnasium import spaces

from mpi_rollout.core.seeding import episode_seeds


def stop_if(place: str) -> None:
    """Stop in the way and at the place that the environment says."""
    how, _, where = os.environ.get("STOP_AT", "").partition(":")
    if not how or where != place:
        return
    if how == "raise":
        raise RuntimeError("told to fail")
    number = {"kill": signal.SIGKILL, "usr1": signal.SIGUSR1, "term": signal.SIGTERM}[how]
    if os.environ.get("STOP_PAUSE"):  # So that what was taken is committed, or written in part.
        time.sleep(float(os.environ["STOP_PAUSE"]))
    signal.raise_signal(number)  # To this thread: one of MPI's may be slow to take it.


class Policy:
    """Actions that are a function of what is observed alone; counts the steps of this start of the run."""

    def __init__(self, actions):
        self.actions, self.calls = actions, 0

    def __call__(self, observations):
        self.calls += 1
        stop_if(str(self.calls))
        return self.actions(observations)


def _sum(observations) -> np.ndarray:
    """A number for each env that differs when any observed byte of it does."""
    arrays = observations if isinstance(observations, np.ndarray) else observations["id"]
    flat = np.ascontiguousarray(arrays).reshape(len(arrays), -1).view(np.uint8)
    return flat.astype(np.int64) @ (np.arange(flat.shape[1]) % 251 + 1)


binary = Policy(lambda observations: _sum(observations) % 2)
counting = Policy(lambda observations: 2 + _sum(observations) % 5)
humanoid = Policy(
    lambda observations: ((_sum(observations)[:, None] * np.arange(1, 18) % 81 - 40) / 100).astype(np.float32)
)
blind = Policy(lambda observations: np.zeros(len(observations), np.int64))


def nested_actions(observations) -> dict:
    numbers = _sum(observations)
    rows = numbers[:, None]
    return {
        "move": (numbers % 4, (rows * [1, 3] % 21 / 10 - 1).astype(np.float32)),
        "bits": (rows[:, :, None] * [[1, 3], [5, 7]] % 2).astype(np.int8),
        "free": rows * [0.1, 0.2, 0.3],
        "up": 1.0 + rows / 7,
        "many": rows * [1, 1] % [3, 5] + [-1, 2],
    }


nested = Policy(nested_actions)


class Fresh:
    """Has an env of `envs` keep nothing from one episode to the next: what an env keeps is not brought back."""

    def reset(self, *, seed=None, options=None):
        self.name, self.episode = -1, (seed or 0) // 7 % 2 - 1
        return super().reset(seed=seed, options=options)


class Counting(Fresh, envs.Counting):
    """Observes (seed, 0 or 1, step, last action); where the second is 1, the end is a truncation."""


class Nested(Fresh, envs.Nested):
    """The same in spaces of every kind."""


class Image(Fresh, envs.Image):
    """The same as frames."""


class Paced(Image):
    """Takes the time that PACE_S says, in seconds, so that the command of a run stays the same."""

    def step(self, action):
        if "PACE_S" in os.environ:
            time.sleep(float(os.environ["PACE_S"]))
        return super().step(action)


class Stopping(Counting):
    """Stops at a step of an episode."""

    def step(self, action):
        stop_if(f"{self.seed}-{self.step_number + 1}")
        return super().step(action)


class Forgetful(gymnasium.Env):
    """Ends after 3 + seed % 5 steps; observes what it draws from a generator that nobody seeds.

    `where` is where it does: in "step", in "reset", or nowhere; of `some_forget`, the envs 3 and later do.
    """

    observation_space = spaces.Box(-1, 2**62, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, where="step", wild_seeds=None):
        self.where, self.wild_seeds = where, wild_seeds
        self.wild = np.random.Generator(np.random.PCG64())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.number = seed, 0
        return self.observe("reset"), {}

    def step(self, action):
        self.number += 1
        return self.observe("step"), float(self.number), self.number >= 3 + self.seed % 5, False, {}

    def observe(self, when):
        is_wild = when == self.where and (self.wild_seeds is None or self.seed in self.wild_seeds)
        drawn = self.wild.random() if is_wild else 0.0
        return np.array([self.seed, self.number, drawn])


def some_forget():
    """Envs that forget where the run with seed 5 gives them the seeds of its envs 3 to 5."""
    return Forgetful(wild_seeds={seed for env in (3, 4, 5) for seed in islice(episode_seeds(5, env), 60)})


class Slow(Counting):
    """Takes its time."""

    def __init__(self, sleep_s=0.05):
        super().__init__()
        self.sleep_s = sleep_s

    def step(self, action):
        time.sleep(self.sleep_s)
        return super().step(action)


def asked_early(rank: int) -> gymnasium.Env:
    """Make an env; on one rank somebody asks the run to stop meanwhile."""
    if rank == envs.RANK:
        signal.raise_signal(signal.SIGUSR1)
    return gymnasium.make("CartPole-v1")
