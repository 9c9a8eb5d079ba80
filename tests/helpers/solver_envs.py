"""Envs that start an MPI program for each observation, as envs of LAMMPS or Nek5000 do, each in a way of its own."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import mpi_solver
import numpy as np
from gymnasium import spaces
from jobs import mpiexec


def call(*command: str) -> None:
    """Run a command to a good end."""
    subprocess.run(command, check=True, timeout=60)


def by_system(number: float, path: str) -> None:
    """Start it by C's `system`."""
    if os.system(f"{sys.executable} {mpi_solver.__file__} {number} {path}"):
        raise RuntimeError("the solver failed")


def by_spawn(number: float, path: str) -> None:
    """Solve in a process of Python's multiprocessing."""
    process = multiprocessing.get_context("spawn").Process(target=mpi_solver.solve, args=(number, path))
    process.start()
    process.join(60)
    if process.exitcode:
        raise RuntimeError(f"the solver ended with {process.exitcode}")


WAYS = (
    lambda number, path: call(sys.executable, mpi_solver.__file__, str(number), path),
    by_system,
    by_spawn,
    lambda number, path: call(mpiexec(), "-n", "2", sys.executable, mpi_solver.__file__, str(number / 2), path),
)


class Solving(gymnasium.Env):
    """Observes the number of its solver's ranks, and the sum of what these were given."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, env_index: int):
        self.index, self.count = env_index, 0

    def observation(self) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "result")
            WAYS[self.index](10.0 * self.index + self.count, str(path))
            return np.array(path.read_text().split(), float)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.observation(), {}

    def step(self, action):
        self.count += 2
        return self.observation(), 1.0, False, False, {}


RIGHT = [[[1, 0], [1, 10], [1, 20], [2, 30]], [[1, 2], [1, 12], [1, 22], [2, 32]]]  # By step and env.
