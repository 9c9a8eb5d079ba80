"""The limit: how fast the same envs go with nothing around them.

What a person would write who wants to know how fast an env is: `gymnasium.make`, a list of actions, a loop over
`env.step`, `env.reset` where an episode ended.  Nothing is kept, sent or written.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import iterate

from mpi_rollout.envs.loop import LoopVectorEnv


def bare_loop(
    slice_: LoopVectorEnv, seeds: Sequence[Iterator[int]], actions: Sequence[Sequence[Any]]
) -> Callable[[float], float]:
    """Return a function that steps the envs for some seconds and returns env steps per second.

    Parameters
    ----------
    slice_
        Whose envs to step, as `gymnasium.make` gave them, not by its own loop; it lives as long as the function.
    actions
        For each of some steps one action per env, used in turn.
    """
    envs = slice_.envs
    steps = [env.step for env in envs]
    for env, seed in zip(envs, seeds, strict=True):
        env.reset(seed=next(seed))

    def measure(seconds: float) -> float:
        start, num_steps = perf_counter(), 0
        while True:
            for row in actions:
                for index, (step, action) in enumerate(zip(steps, row, strict=True)):
                    _, _, terminated, truncated, _ = step(action)
                    if terminated or truncated:
                        envs[index].reset(seed=next(seeds[index]))
                num_steps += slice_.num_envs
                elapsed = perf_counter() - start
                if elapsed >= seconds:
                    return num_steps / elapsed

    return measure


def bare_vector_loop(envs: VectorEnv, seed: int, actions: Sequence[Any]) -> Callable[[float], float]:
    """The same for a natively vectorized slice, whose rows after an episode's end are resets, not steps."""
    envs.reset(seed=seed)

    def measure(seconds: float) -> float:
        start, ends = perf_counter(), []
        while True:
            for row in actions:
                _, _, terminations, truncations, _ = envs.step(row)
                ends.append((terminations, truncations))  # Counted when the clock stands.
                elapsed = perf_counter() - start
                if elapsed >= seconds:
                    num_resets = sum(int(np.logical_or(*pair).sum()) for pair in ends)
                    return (len(ends) * envs.num_envs - num_resets) / elapsed

    return measure


def split_actions(envs: VectorEnv, actions: Sequence[Any]) -> list[list[Any]]:
    """Batched actions as lists of single ones, prepared before the clock runs."""
    return [list(iterate(envs.action_space, row)) for row in actions]
