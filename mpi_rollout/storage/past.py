"""Where a run stood that is to be continued, read from its file."""

import h5py
import numpy as np

from mpi_rollout.envs.replaying import Past
from mpi_rollout.storage.reader import committed_episodes


def read_past(file: h5py.File, seed: int) -> Past:
    """Read where the envs of a file stood after its last commit."""
    num_steps = int(file["trajectories"].attrs["num_steps"])
    num_envs = int(file.attrs["num_envs"])
    rows = committed_episodes(file)
    rows = rows[rows["terminated"] | rows["truncated"]]
    starts = np.zeros(num_envs, np.int64)
    np.maximum.at(starts, rows["env_index"], rows["start"] + rows["length"] + 1)
    if num_steps:  # Also of envs that were lost with their rank, and begin again: all their rows since are ends.
        ends = file["trajectories/terminations"][num_steps - 1] | file["trajectories/truncations"][num_steps - 1]
        starts[ends] = num_steps + 1
    return Past(seed, num_steps, np.bincount(rows["env_index"], minlength=num_envs), starts)
