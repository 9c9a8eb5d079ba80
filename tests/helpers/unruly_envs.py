"""Envs and policies that raise what is no `Exception` or cannot be told, and envs that break stdout and stderr."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from time import sleep

import numpy as np
from envs import RANK, Counting

from mpi_rollout.exchange.world import claimed_size


class Stop(BaseException):
    """No `Exception`, as some libraries have them."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there is no message")


RAISED = {
    "interrupt": KeyboardInterrupt(),
    "base": Stop("enough"),
    "exit": GeneratorExit(),
    "mute": Mute(),
    "surrogate": ValueError("file \udcff is missing"),
}


class Raising(Counting):
    """The first env of a rank raises in its fifth step, once."""

    num_made = 0

    def __init__(self, what: str, rank: int = 0):
        super().__init__()
        self.what, self.index, self.num_steps = what, Raising.num_made + abs(RANK - rank), 0
        Raising.num_made += 1

    def step(self, action):
        self.num_steps += 1
        if self.index == 0 and self.num_steps == 5:
            raise RAISED[self.what]
        return super().step(action)


def close():
    sys.stdout.close()
    sys.stderr.close()


def replace():
    sys.stdout = sys.stderr = object()


def close_descriptors():
    with suppress(OSError):  # Another env has done so.
        os.close(1)
        os.close(2)


def forget():
    sys.stdout = None


BREAKS = {"close": close, "replace": replace, "descriptors": close_descriptors, "forget": forget}


class Breaking(Counting):
    """Breaks stdout and stderr when it is made, or in its fifth step."""

    def __init__(self, how: str, is_late: bool = True, fails: bool = False):
        super().__init__()
        self.how, self.fails, self.num_steps = how, fails, 0
        if not is_late:
            BREAKS[how]()

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 5 and sys.stdout is not None:
            BREAKS[self.how]()
        if self.num_steps == 7 and self.fails:
            raise RuntimeError("the simulator has diverged")
        return super().step(action)


def never_made():
    raise KeyboardInterrupt


class Outrunning(Counting):
    """Plays another start of the run, which was quicker."""

    def __init__(self):
        super().__init__()
        if RANK:
            return
        Path("run.h5.part").write_bytes(b"of the other")
        Path("run.status.json").write_text('{"state": "running"}')


class Watched(Counting):
    """Takes its time for steps until the file `seen` is there; then the first env of the last rank fails, once."""

    num_made = 0

    def __init__(self):
        super().__init__()
        self.fails = claimed_size()[0] == RANK + 1 and Watched.num_made == 0
        Watched.num_made += 1

    def step(self, action):
        if not Path("seen").exists():
            sleep(0.02)
        elif self.fails:
            self.fails = False
            raise RuntimeError("the simulator stumbled")
        return super().step(action)


class Policy:
    """For `envs.Counting`; raises in its eighth call."""

    def __init__(self, what: str):
        self.what, self.num_calls = what, 0

    def __call__(self, observations):
        self.num_calls += 1
        if self.num_calls == 8:
            raise RAISED[self.what]
        return np.full(len(observations), 3)


interrupt, base, exit, mute, surrogate = map(Policy, RAISED)
