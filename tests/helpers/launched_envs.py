"""Envs that act on the trainer that has launched them, and trainers that `launched` tests start."""

import os
import signal
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


class Halving:
    """A policy with a parameter, for the ranks."""

    def __init__(self):
        self.parameters = {"weights": np.ones(4, np.float32)}

    def load(self, parameters):
        self.parameters = {name: np.array(value) for name, value in parameters.items()}

    def act(self, observations, env_indices, uniforms):
        return (observations @ self.parameters["weights"] > 0).astype(np.int64)
