"""An env that is an MPI program: pads of compressed air, over a tank of shallow water, calm its waves.

    mpirun -n 4 python -m mpi_rollout --env-factory examples/shallow_water/env.py:make_env --ranks-per-env 2 \
        --num-envs 4 --num-steps 300 --out results/waves.h5

All ranks of an env make it, with the env's own communicator, and take the same steps.  By itself, this program takes
an episode on all ranks together and one on each rank alone, and compares them bit for bit:

    mpirun -n 2 python examples/shallow_water/env.py
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from mpi4py import MPI
from solver import DEPTH, SIDE, Tank

NUM_PADS, NUM_SENSORS, NUM_HUMPS = 4, 8, 3
STEP_S = 0.1
LARGEST_PRESSURE = 0.15  # m²/s²: it carries 1.5 cm of water
WALL_M = 0.25  # from the left wall to the sensors
PAD_M = 1.0  # from the left wall to the end of the pads
HUMP_M = 0.6  # standard deviation of a hump of water

Observed = tuple[np.ndarray, dict[str, Any]]


class ShallowWaterEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Calm the water that a few humps have set in motion.

    An action is the pressure of each pad along the left wall.  An observation has the heights in cm at sensors below
    the pads, and how much they rose in this step.  A reward is the energy that the waves lost in this step, in percent
    of what they had when the episode began: the return is what they lost in all, at most 100.
    """

    observation_space = Box(-np.inf, np.inf, (2 * NUM_SENSORS,), np.float32)
    action_space = Box(-1.0, 1.0, (NUM_PADS,), np.float32)

    def __init__(self, comm: MPI.Intracomm, num_cells: int = 32, num_steps: int = 150):
        self._tank, self._num_steps = Tank(comm, num_cells), num_steps
        self._x = (np.arange(num_cells) + 0.5) * self._tank.cell_m
        self._y = self._x[:, None]
        self._pads_y = (np.arange(NUM_PADS) + 0.5) * SIDE / NUM_PADS
        self._below_pads = np.cos(np.pi / 2 * np.minimum(1, self._x / PAD_M)) ** 2
        self._sensor_rows = (np.arange(NUM_SENSORS) * num_cells + num_cells // 2) // NUM_SENSORS
        self._sensor_column = int(WALL_M / self._tank.cell_m)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Observed:
        """Begin with still water that has humps and hollows."""
        super().reset(seed=seed)
        # Where there is no seed, each rank's generator draws other numbers.
        humps = self._tank.comm.bcast(self.np_random.uniform((0, 0, -1), (SIDE, SIDE, 1), (NUM_HUMPS, 3)))
        heights = np.full((len(self._y), len(self._x)), DEPTH)
        for x, y, height in humps:
            hump = np.exp(-((self._x - x) ** 2 + (self._y - y) ** 2) / (2 * HUMP_M**2))
            heights += 0.03 * (height + np.sign(height)) / 2 * (hump - hump.mean())  # 1.5 to 3 cm, up or down.
        self._tank.fill(heights)
        self._step, self._heights = 0, np.zeros(NUM_SENSORS)
        observation, self._energy = self._look()
        self._first_energy = self._energy
        return observation, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Hold the pressures for a tenth of a second."""
        pressures = LARGEST_PRESSURE * np.clip(action, -1, 1).astype(float)
        self._tank.advance(STEP_S, np.interp(self._y, self._pads_y, pressures) * self._below_pads)
        self._step += 1
        before = self._energy
        observation, self._energy = self._look()
        reward = 100 * (before - self._energy) / self._first_energy
        return observation, reward, False, self._step >= self._num_steps, {}

    def _look(self) -> tuple[np.ndarray, float]:
        """Return the observation and the energy of all waves: the same on all ranks."""
        tank = self._tank
        heights, energies = tank.heights[tank.own], tank.energies()
        rows = tank.gather_rows(np.stack([heights[:, self._sensor_column], energies.sum(axis=1)], axis=1))
        before, self._heights = self._heights, 100 * (rows[self._sensor_rows, 0] - DEPTH)
        observation = np.concatenate([self._heights, self._heights - before])
        return observation.astype(np.float32), float(rows[:, 1].sum())

    def close(self) -> None:
        """Free what the tank has of MPI."""
        self._tank.free()


def make_env(comm: MPI.Intracomm, **kwargs: int) -> ShallowWaterEnv:
    """Make the env of the ranks of `comm`; all of them call this."""
    return ShallowWaterEnv(comm, **kwargs)


def episode(comm: MPI.Intracomm, **kwargs: int) -> bytes:
    """Return what an episode of random actions gives."""
    env, actions = make_env(comm, **kwargs), np.random.default_rng(1)
    given = [env.reset(seed=0)[0].tobytes()]
    is_over = False
    while not is_over:
        observation, reward, _, is_over, _ = env.step(actions.uniform(-1, 1, NUM_PADS))
        given += [observation.tobytes(), np.float64(reward).tobytes()]
    env.close()
    return b"".join(given)


if __name__ == "__main__":
    world = MPI.COMM_WORLD
    is_same = world.allreduce(episode(world) == episode(MPI.COMM_SELF), MPI.LAND)
    if world.rank == 0:
        print(f"{world.size} ranks together give {'the same bits as' if is_same else 'OTHER BITS THAN'} one rank alone")
    sys.exit(not is_same)
