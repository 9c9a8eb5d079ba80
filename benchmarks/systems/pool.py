"""A process pool with several envs in each process: what lies between one process for all and one for each.

Each process has a `SyncVectorEnv`.  Observations are in memory that all share; actions and results go through a pipe,
infos stay where they are.
"""

import mmap
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from multiprocessing.connection import Connection
from operator import itemgetter

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, leaves, map_tree, tree_of
from mpi_rollout.studies.compare import SEED, Setup, actions_of
from systems.stepped import Stepper, count_rows

Functions = Sequence[Callable[[], gymnasium.Env]]
Steps = Callable[[object | None], tuple[np.ndarray, ...]]


@contextmanager
def pool(setup: Setup) -> Iterator[Stepper]:
    """Make several envs in each of as many processes as there are cores."""
    actions, functions = cycle(actions_of(setup, setup.num_envs)), setup.maker().functions(range(setup.num_envs))
    with process_pool(functions, setup.num_cores, SEED) as step:
        yield Stepper(lambda: step(None), lambda: step(next(actions))[2:4], count_rows)


@contextmanager
def process_pool(functions: Functions, num_processes: int, seed: int) -> Iterator[Steps]:
    """Fork the processes; give what steps all envs, or resets them without actions, and returns all but infos."""
    with functions[0]() as env:
        space = env.observation_space
    shared = [_shared(leaf, len(functions)) for leaf in leaves(space)]
    context, partition, workers = multiprocessing.get_context("fork"), Partition(len(functions), num_processes), []
    for rank in range(num_processes):
        envs, (ours, theirs) = partition.envs_of(rank), context.Pipe()
        process = context.Process(target=_work, args=(functions, envs, shared, theirs, seed), daemon=True)
        process.start()
        theirs.close()  # Or a process that dies would not end the pipe.
        workers.append((ours, slice(envs.start, envs.stop), process))

    def step(actions: object | None) -> tuple[np.ndarray, ...]:
        for pipe, mine, _ in workers:
            pipe.send(None if actions is None else map_tree(itemgetter(mine), actions))
        results = [pipe.recv() for pipe, _, _ in workers]  # EOFError if a process has died; it has said why.
        observations = tree_of(space, [array.copy() for array in shared])
        return observations, *(np.concatenate(column) for column in zip(*results, strict=True))

    try:
        yield step
    finally:
        for _, _, process in workers:
            process.kill()
            process.join()


def _shared(leaf: Leaf, num_envs: int) -> np.ndarray:
    size = num_envs * int(np.prod(leaf.shape))
    memory = mmap.mmap(-1, max(1, size * np.dtype(leaf.dtype).itemsize))
    return np.frombuffer(memory, leaf.dtype, size).reshape(num_envs, *leaf.shape)


def _work(functions: Functions, mine: range, shared: list[np.ndarray], pipe: Connection, seed: int) -> None:
    """Step or reset this process's envs whenever an order comes, until it is ended."""
    envs = SyncVectorEnv(functions[mine.start : mine.stop])
    while True:
        actions = pipe.recv()
        outputs = envs.reset(seed=seed + mine.start)[:1] if actions is None else envs.step(actions)[:4]
        for leaf, array in zip(leaves(envs.single_observation_space), shared, strict=True):
            array[mine.start : mine.stop] = leaf.of(outputs[0])
        pipe.send(outputs[1:])
