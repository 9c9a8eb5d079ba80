"""How fast a file is read: drawn transitions, and all episodes beside a sequential read of the same bytes.

    python results/measured/measure_reading.py FILE

FILE is read once before, so that it is in the page cache.  A run of CartPole with ten million transitions:

    mpirun -n 2 python -m mpi_rollout --env CartPole-v1 --num-envs 64 --num-steps 164000 --out FILE
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import h5py
import numpy as np

import mpi_rollout

REPETITIONS = 5
BATCH = 4096
NUM_BATCHES = 100


def sequential(path: str) -> None:
    """Read all columns with h5py, a megabyte or some at a time: as fast as HDF5 gives the data."""
    with h5py.File(path) as file:
        columns: list[h5py.Dataset] = []
        file["trajectories"].visititems(
            lambda _, item: columns.append(item) if isinstance(item, h5py.Dataset) else None
        )
        for column in columns:
            rows = column.chunks[0]
            array = np.empty((rows, *column.shape[1:]), column.dtype)
            for row in range(0, len(column), rows):
                stop = min(row + rows, len(column))
                column.read_direct(array, np.s_[row:stop], np.s_[: stop - row])


def of_all_episodes(path: str) -> None:
    """Take every array of every episode."""
    with mpi_rollout.open(path) as data:
        for episode in data.iter_episodes():
            _ = episode.observations, episode.actions, episode.rewards, episode.terminations, episode.truncations


def by_episodes(path: str) -> None:
    """Iterate over all episodes, and take their observations only."""
    with mpi_rollout.open(path) as data:
        for episode in data.iter_episodes():
            _ = episode.observations


def batches(path: str) -> float:
    """Return how many batches are drawn per second, and how long the first one took, which compares checksums."""
    data = mpi_rollout.open(path)
    rng = np.random.default_rng(0)
    start = perf_counter()
    data.sample_transitions(BATCH, rng)
    first = perf_counter() - start
    rates = []
    for _ in range(REPETITIONS):
        start = perf_counter()
        for _ in range(NUM_BATCHES):
            data.sample_transitions(BATCH, rng)
        rates.append(NUM_BATCHES / (perf_counter() - start))
    print(
        f"sample_transitions({BATCH}): {median(rates):.0f} batches/s ({min(rates):.0f} to {max(rates):.0f}), "
        f"the first one after {first:.2f} s, of {len(data.transitions):,} transitions"
    )
    return median(rates)


def seconds(task: Callable[[str], None], path: str) -> float:
    """Return the median of some repetitions."""
    taken = []
    for _ in range(REPETITIONS):
        start = perf_counter()
        task(path)
        taken.append(perf_counter() - start)
    print(f"{task.__name__}: {median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f})")
    return median(taken)


def main() -> None:
    """Print the figures."""
    path = sys.argv[1]
    with mpi_rollout.open(path) as data:
        print(data, f"{len(data.episodes):,} episodes")
    sequential(path)
    whole = seconds(sequential, path)
    for task in (by_episodes, of_all_episodes):
        print(f"{whole / seconds(task, path):.2f} of a sequential read")
    batches(path)


if __name__ == "__main__":
    main()
