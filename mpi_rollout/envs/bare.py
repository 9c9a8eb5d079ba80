"""How fast envs are with nothing around them: the limit of a run.

A bare loop is what a person writes to learn how fast an env is: `gymnasium.make`, a list of actions, `env.step`, and
`env.reset` where an episode ended.  Nothing is kept, sent or written.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from time import perf_counter, sleep
from typing import Any

import numpy as np
from gymnasium import Env, spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.env_group import EnvGroup, GroupEnv
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.inputs import action_splitter
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.rollout import Rollout, RolloutColumns, as_rollout
from mpi_rollout.errors import EnvError
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy
from mpi_rollout.text import words_of


def make_bare(make: EnvMaker, indices: range, seed: int, actions: Sequence[Tree]) -> Callable[[float], float]:
    """Make a second set of the same envs; return a function that steps them for some seconds, and returns the rate.

    `actions` are batched, for some steps, and used in turn.
    """
    if make.is_native:
        envs = make.native(indices, seed)
        rollout = as_rollout(envs)
        envs.reset(seed=seed)
        return bare_vector_loop(envs, actions) if rollout is None else _bare_rollouts(rollout, actions)
    slice_ = LoopVectorEnv(make.functions(indices))
    # Single actions are prepared before the clock runs.
    rows = [*map(action_splitter(slice_.single_action_space), actions)]
    seeds = [make.seeds(seed, index) for index in indices]
    is_wrapped = not all(isinstance(env, GroupEnv) for env in slice_.envs)  # On the first rank alone.
    if make.group is None or is_wrapped:
        return _bare_loop(slice_, seeds, rows)
    return _bare_loop_of_group(make.group, slice_, seeds, rows)


def _bare_loop(
    slice_: LoopVectorEnv, seeds: Sequence[Iterator[int | None]], actions: Sequence[Sequence[object]]
) -> Callable[[float], float]:
    """Step the envs of a slice as `gymnasium.make` gave them, not by its own loop; the function keeps them alive."""
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


def _bare_loop_of_group(
    group: EnvGroup, slice_: LoopVectorEnv, seeds: Sequence[Iterator[int | None]], actions: Sequence[Sequence[object]]
) -> Callable[[float], float]:
    """Do the same on all ranks of a group, each with its own parts of the envs."""
    for env, seed in zip(slice_.envs, seeds, strict=True):
        env.reset(seed=next(seed))

    def measure(seconds: float) -> float:
        next_seeds = [[*islice(of_env, BLOCK_STEPS)] for of_env in seeds]  # More episodes take them again.
        return group.call(_step_parts, slice_.envs, next_seeds, actions, seconds)

    return measure


def _step_parts(
    group: EnvGroup,
    envs: Sequence[Env],
    seeds: Sequence[Sequence[int | None]],
    actions: Sequence[Sequence[object]],
    seconds: float,
) -> float:
    """Step one rank's parts of envs; the first rank tells the others which episodes, and whether the time, are over."""
    is_first, is_over, seeds_in_turn = group.comm.rank == 0, bytearray(len(envs) + 1), [*map(cycle, seeds)]
    start, num_steps = perf_counter(), 0
    for row in cycle(actions):
        for index, (env, action) in enumerate(zip(envs, row, strict=True)):
            outcome = env.step(action)
            is_over[index] = is_first and bool(outcome[2] or outcome[3])
        num_steps += len(envs)
        is_over[-1] = perf_counter() - start >= seconds
        group.share(is_over)
        for index, env in enumerate(envs) if any(is_over) else ():
            if is_over[index]:
                env.reset(seed=next(seeds_in_turn[index]))
        if is_over[-1]:
            break
    return num_steps / (perf_counter() - start)


def bare_vector_loop(envs: VectorEnv, actions: Sequence[object]) -> Callable[[float], float]:
    """Do the same for a natively vectorized slice, whose rows after an episode's end are resets, not steps."""
    step = getattr(envs.unwrapped, "bare_step", envs.step)

    def measure(seconds: float) -> float:
        start, ends = perf_counter(), []
        while True:
            for row in actions:
                _, _, terminations, truncations, _ = step(row)
                ends.append((terminations, truncations))  # Counted when the clock stands.
                elapsed = perf_counter() - start
                if elapsed >= seconds:
                    num_resets = sum(int(np.logical_or(*pair).sum()) for pair in ends) if has_reset_rows(envs) else 0
                    return (len(ends) * envs.num_envs - num_resets) / elapsed

    return measure


def _bare_rollouts(envs: Rollout, actions: Sequence[Any]) -> Callable[[float], float]:
    """Do the same for envs that take a fragment in one call, of as many steps as there are actions."""
    rows: np.ndarray = np.stack(actions)
    ends = np.zeros((2, *rows.shape[:2]), np.bool_)
    columns = RolloutColumns(terminations=ends[0], truncations=ends[1]) if has_reset_rows(envs) else RolloutColumns()
    envs.rollout(rows, columns)  # Some compile in their first call.

    def measure(seconds: float) -> float:
        start, num_steps = perf_counter(), 0
        while True:
            envs.rollout(rows, columns)
            num_steps += ends[0].size - int(np.count_nonzero(ends[0] | ends[1]))
            elapsed = perf_counter() - start
            if elapsed >= seconds:
                return num_steps / elapsed

    return measure


def has_reset_rows(envs: Any) -> bool:
    """Tell whether the row after an episode's end is a reset, not a step."""
    return bool(envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP)


class Limit:
    """Measures this rank's part of the limit, as a `Service`; makes its envs when first asked."""

    name = "limit"

    def __init__(
        self, make: EnvMaker, seed: int, wait_for_all: Callable[[], None], envs: range, action_space: spaces.Space
    ):
        self._make_env, self._seed, self._envs, self._action_space = make, seed, envs, action_space
        self._wait_for_all = wait_for_all
        self._measure: Callable[[float], float] | None = None

    def measure(self, seconds: float) -> float:
        """Measure env steps per second of bare loops that run on all ranks at the same time.

        **Collective.**  A rank without envs sleeps as long: its wait for the others' results would take a core from
        their loops.
        """
        try:
            if self._measure is None and self._envs:
                self._measure = self._make()
        finally:
            self._wait_for_all()  # Also when this rank has failed: the others wait here.
        try:
            if self._measure:
                return self._measure(seconds)
        except Exception as error:
            what = words_of(error)
            raise EnvError(f"measuring the limit: {what}; leave out --measure-limit") from error
        sleep(seconds)
        return 0.0

    def _make(self) -> Callable[[float], float]:
        policy = RandomPolicy(self._action_space, self._envs, self._seed, self._make_env.first_env)
        rows = [policy.at(step) for step in range(BLOCK_STEPS)]
        return make_bare(self._make_env, self._envs, self._seed, rows)
