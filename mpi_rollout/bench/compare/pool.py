"""A process pool with several envs in each process: what lies between one process for all and one for each.

Gymnasium and Stable-Baselines3 offer a loop in this process, or a process for every env.  Between them is this page: N
envs in M processes, a `SyncVectorEnv` in each, actions and outputs in memory that all share, a byte through a pipe to
say go and another to say done.  Infos stay where they are.
"""

import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Tree, leaves, tree_of
from mpi_rollout.errors import words_of

STEP, RESET, DONE, FAILED = b"s", b"r", b"d", b"f"
MESSAGE_BYTES = 2000  # Of an error: less than what a pipe takes in one piece.


class ProcessPoolVectorEnv(VectorEnv):
    """`num_envs` envs in `num_processes` processes, with the outputs of `SyncVectorEnv`, infos left out.

    Parameters
    ----------
    make
        Makes one env; processes are forked, so it need not be picklable.

    Raises
    ------
    UsageError
        A process would have no env.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, make: Callable[[], gymnasium.Env], num_envs: int, num_processes: int):
        self._workers: list[tuple[int, int, ForkProcess]] = []  # First: `close` is called even where the rest fails.
        partition = Partition(num_envs, num_processes)
        self.num_envs = num_envs
        with make() as env:
            self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations = shared_arrays(self.single_observation_space, num_envs)
        self._actions = shared_arrays(self.single_action_space, num_envs)
        self._results = [shared(dtype, num_envs) for dtype in (np.float64, np.bool_, np.bool_)]
        self._seed = shared(np.int64, 2)  # Whether there is one, and which.
        self._leaves = leaves(self.single_action_space)
        for rank in range(num_processes):
            self._workers.append(self._fork(make, partition.envs_of(rank)))

    def _fork(self, make: Callable[[], gymnasium.Env], envs: range) -> tuple[int, int, ForkProcess]:
        """Start a process; return the ends of its pipes that are ours, and itself."""
        (order, to_send), (to_receive, answer) = os.pipe(), os.pipe()
        context = multiprocessing.get_context("fork")
        process = context.Process(target=self._work, args=(make, envs, order, answer), daemon=True)
        process.start()
        os.close(order)
        os.close(answer)  # Or a process that dies would not end the pipe.
        return to_send, to_receive, process

    def _work(self, make: Callable[[], gymnasium.Env], indices: range, order: int, answer: int) -> None:
        """Step or reset this process's envs whenever an order comes, until it is ended."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to all; the parent decides.
        mine = slice(indices.start, indices.stop)
        envs = SyncVectorEnv([make] * len(indices))
        actions = tree_of(self.single_action_space, [array[mine] for array in self._actions])
        while command := os.read(order, 1):
            try:
                if command == RESET:
                    seed = int(self._seed[1]) + mine.start if self._seed[0] else None
                    self._put([envs.reset(seed=seed)[0]], mine)
                else:
                    self._put(envs.step(actions)[:4], mine)
                os.write(answer, DONE)
            except Exception as error:
                text = f"envs {indices.start} to {indices.stop - 1}: {words_of(error)}"
                os.write(answer, FAILED + text.encode()[:MESSAGE_BYTES])

    def _put(self, outputs: Sequence[Tree], mine: slice) -> None:
        for leaf, array in zip(leaves(self.single_observation_space), self._observations, strict=True):
            array[mine] = leaf.of(outputs[0])
        for array, values in zip(self._results, outputs[1:], strict=False):
            array[mine] = values

    def _do(self, command: bytes) -> Tree:
        """Let all processes carry out a command; return a copy of the observations."""
        for order, _, _ in self._workers:
            with suppress(BrokenPipeError):  # A process that has died gives no answer, which is noticed below.
                os.write(order, command)
        answers = [os.read(answer, 1 + MESSAGE_BYTES) for _, answer, _ in self._workers]
        for answer in answers:
            if answer != DONE:
                raise RuntimeError(answer[1:].decode(errors="replace") or "a process of the pool has died")
        return tree_of(self.single_observation_space, [array.copy() for array in self._observations])

    def reset(self, *, seed: int | None = None, options: object = None):
        """Reset all envs; env i is seeded with seed + i."""
        self._seed[:] = (0, 0) if seed is None else (1, seed)
        return self._do(RESET), {}

    def step(self, actions: object):
        """Step all envs; return copies."""
        for leaf, array in zip(self._leaves, self._actions, strict=True):
            array[:] = leaf.of(actions)
        observations = self._do(STEP)
        return observations, *(array.copy() for array in self._results), {}

    def close_extras(self, **_kwargs: object) -> None:
        """End the processes."""
        for order, answer, process in self._workers:
            os.close(order)
            process.kill()
            process.join()
            with suppress(OSError):
                os.close(answer)


def shared_arrays(space: spaces.Space, num_envs: int) -> list[np.ndarray]:
    """Make an array of shape (num_envs, ...) for each leaf of a space, in memory that forked processes share."""
    return [shared(leaf.dtype, num_envs, *leaf.shape) for leaf in leaves(space)]


def shared(dtype: npt.DTypeLike, *shape: int) -> np.ndarray:
    """Make an array of zeros that forked processes share."""
    nbytes = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), dtype, int(np.prod(shape))).reshape(shape)
