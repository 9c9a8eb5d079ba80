"""Read a file of a run: its episodes with h5py, and its transitions as batches of PyTorch.

    python examples/read_data.py results/tank.h5

It needs h5py, and for the batches PyTorch, but nothing of mpi_rollout.  It is for spaces that are one array: a Dict or
Tuple space is a group of datasets.
"""

import sys

import h5py
import numpy as np


def read_transitions(file: h5py.File) -> dict[str, np.ndarray]:
    """Return all transitions, one after the other.

    This holds the data in memory.  Read larger files by episode: `actions[start : start + length, env_index]`.
    """
    episodes = file["episodes"][:]
    envs = np.repeat(episodes["env_index"], episodes["length"])
    steps = np.concatenate([np.arange(start, start + length) for start, length in episodes[["start", "length"]]])
    columns = {name: file["trajectories"][name][:] for name in ("observations", "actions", "rewards", "terminations")}
    return {
        "observation": columns["observations"][steps, envs],
        "action": columns["actions"][steps, envs],
        "reward": columns["rewards"][steps, envs],
        "terminated": columns["terminations"][steps, envs],
        "next_observation": columns["observations"][steps + 1, envs],
    }


def print_episodes(file: h5py.File) -> None:
    """Print what the file says of its episodes."""
    episodes = file["episodes"][:]
    ended = episodes[episodes["terminated"] | episodes["truncated"]]
    print(f"{len(episodes)} episodes, {len(ended)} of them complete")
    if len(ended):
        print(f"mean return {ended['return'].mean():.2f}, mean length {ended['length'].mean():.1f}")


def print_batches(transitions: dict[str, np.ndarray]) -> None:
    """Go once through all transitions in random order, as a training does."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(*(torch.from_numpy(column) for column in transitions.values()))
    batches = list(DataLoader(dataset, batch_size=256, shuffle=True))
    shapes = dict(zip(transitions, (tuple(column.shape) for column in batches[0]), strict=True))
    print(f"{len(dataset)} transitions in {len(batches)} batches; the first has {shapes}")


def main(path: str) -> None:
    with h5py.File(path) as file:
        print_episodes(file)
        transitions = read_transitions(file)
    try:
        print_batches(transitions)
    except ModuleNotFoundError as error:
        print(f"{len(transitions['reward'])} transitions; no batches: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
