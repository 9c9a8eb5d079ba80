"""A policy and envs that note what a step visits in the package, on the root and on the worker of two ranks.

The root's step goes from one call of the policy to the next one, the worker's from one step of its first env to the
next one.  Written are the visits of the step that took the fewest calls of some: the others also looked at the clock,
or waited for long.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
from envs import Counting

import mpi_rollout

PACKAGE = str(Path(mpi_rollout.__file__).parent) + "/"
FIRST, LAST = 20, 60  # Of the calls between which steps are followed.
NUM_ENVS = 4
FIRST_OF_WORKER = NUM_ENVS // 2


def following(name: str) -> Callable[[], None]:
    """Return what to call at the beginning of each step; it writes the visits to the file `name`."""
    num_calls, walks = 0, list[list[str]]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            walks[-1].append(frame.f_code.co_filename.removeprefix(PACKAGE))

    def begin() -> None:
        nonlocal num_calls
        sys.setprofile(None)
        num_calls += 1
        if num_calls == LAST:
            Path(name).write_text(json.dumps(min(walks, key=len)))
        elif FIRST <= num_calls < LAST:
            walks.append([])
            sys.setprofile(note)

    return begin


begin_on_root, begin_on_worker = following("root.json"), following("worker.json")


def act(observations: np.ndarray) -> np.ndarray:
    begin_on_root()
    return np.full(len(observations), 3)


class Followed(Counting):
    """Never ends: a step in which an episode ends visits more."""

    def step(self, action):
        begin_on_worker()
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class Endless(Counting):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


def make_env(env_index: int) -> Counting:
    return Followed() if env_index == FIRST_OF_WORKER else Endless()
