"""How fast a file is read: python benchmarks/reading.py measure FILE [ROUNDS].

Drawn transitions, and all episodes beside a sequential read of the same bytes.  FILE is read once before, so that it is
in the page cache.  A run of CartPole with ten million transitions:

    mpirun -n 2 python -m mpi_rollout --env CartPole-v1 --num-envs 64 --num-steps 164000 --out FILE
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from time import perf_counter

import h5py
import numpy as np
from measuring import ROUNDS, main, ratios, spread, table, turns

import mpi_rollout

BATCH, NUM_BATCHES = 4096, 100
ARRAYS = "observations", "actions", "rewards", "terminations", "truncations"


def sequential(path: str) -> None:
    """Read all columns with h5py, a chunk of rows at a time: as fast as HDF5 gives the data."""
    with h5py.File(path) as file:
        columns: list[h5py.Dataset] = []
        file["trajectories"].visititems(
            lambda _, each: columns.append(each) if isinstance(each, h5py.Dataset) else None
        )
        for column in columns:
            rows = column.chunks[0]
            array = np.empty((rows, *column.shape[1:]), column.dtype)
            for row in range(0, len(column), rows):
                stop = min(row + rows, len(column))
                column.read_direct(array, np.s_[row:stop], np.s_[: stop - row])


def episodes(path: str, *names: str) -> None:
    """Take these arrays of every episode."""
    take = attrgetter(*names)
    with mpi_rollout.open(path) as data:
        for episode in data.iter_episodes():
            take(episode)


def batches(path: str) -> None:
    with mpi_rollout.open(path) as data:
        rng = np.random.default_rng(0)
        for _ in range(NUM_BATCHES):
            data.sample_transitions(BATCH, rng)


def seconds(task: Callable[[str], None], path: str) -> float:
    start = perf_counter()
    task(path)
    return perf_counter() - start


def measure(path: str, rounds: int = ROUNDS) -> None:
    ways: dict[str, Callable[[str], None]] = {
        "a sequential read of all columns with h5py": sequential,
        "`iter_episodes()`, observations taken": lambda path: episodes(path, "observations"),
        "`iter_episodes()`, all arrays taken": lambda path: episodes(path, *ARRAYS),
        f"`sample_transitions({BATCH})`, {NUM_BATCHES} times, with the first one's checksums": batches,
    }
    sequential(path)
    taken = turns({name: partial(seconds, task, path) for name, task in ways.items()}, rounds)
    whole = next(iter(taken.values()))
    rows = ((name, spread(values, ".2f"), spread(ratios(whole, values), ".2f")) for name, values in taken.items())
    table(("what", "seconds", "of a sequential read"), rows)


if __name__ == "__main__":
    main(__doc__, {"measure": measure})
