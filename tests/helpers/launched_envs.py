"""Envs that act on the trainer that has launched them, and trainers that `launched` tests start."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
from envs import Counting


class Interrupting(Counting):
    """Sends the trainer a signal in its second step, `times` times; with 2, the step then lasts until `go` is there."""

    def __init__(self, trainer: int, times: int, go: str, number: int = signal.SIGINT):
        super().__init__()
        self.trainer, self.times, self.go, self.number, self.num_steps = trainer, times, Path(go), number, 0

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 2:
            for number in range(self.times):
                time.sleep(1.5 * bool(number))  # A second one is one that comes a second later.
                os.kill(self.trainer, self.number)
            while self.times == 2 and not self.go.exists():
                time.sleep(0.01)
        return super().step(action)


class Waiting(Counting):
    """Writes down that it steps, and does not come back."""

    def step(self, action):
        Path(f"stepping-{os.getpid()}").touch()
        while True:
            time.sleep(0.1)


class Bomb:
    """Raises where it is unpickled."""

    def __init__(self, error: Exception):
        self.error = error

    def __reduce__(self):
        return self._raise, (self.error,)

    @staticmethod
    def _raise(error: Exception):
        raise error


class Saying(Counting):
    """Its infos cannot be pickled, or unpickled where `error` is set."""

    error: Exception | None = None

    def step(self, action):
        *outcome, _ = super().step(action)
        return *outcome, {"word": Bomb(self.error) if self.error else threading.Lock()}

    def hear(self, word):
        return word


class Halving:
    """A policy with a parameter, for the ranks."""

    def __init__(self):
        self.parameters = {"weights": np.ones(4, np.float32)}

    def load(self, parameters):
        self.parameters = {name: np.array(value) for name, value in parameters.items()}

    def act(self, observations, env_indices, uniforms):
        return (observations @ self.parameters["weights"] > 0).astype(np.int64)
