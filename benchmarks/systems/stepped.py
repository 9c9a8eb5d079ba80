"""What the modules here share: how envs are stepped and counted, envs of any Gymnasium, and actions that were drawn."""

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import cycle
from time import perf_counter
from typing import Any

import numpy as np

from mpi_rollout.studies.compare import Setup, drawn_actions


class Stepper:
    """How a system's envs are stepped: call it to step them for some seconds; it returns env steps per second.

    `sweep` steps all envs once, or takes what one `recv` brings.  `count` finds the env steps of all sweeps since the
    reset from what these returned: nothing is counted while the clock runs.
    """

    def __init__(self, reset: Callable[[], object], sweep: Callable[[], object], count: Callable[[list], int] = sum):
        self.reset, self.sweep, self.count = reset, sweep, count
        self._sweeps: list = []

    def __call__(self, seconds: float) -> float:
        env_steps, elapsed = self.step_for(seconds)
        return env_steps / elapsed

    def step_for(self, seconds: float) -> tuple[int, float]:
        """Step for some seconds, at first after a reset, the last sweep whole; return env steps and seconds.

        There are two sweeps or more: one of two steps an env, even where the other one only resets.
        """
        if not self._sweeps:
            self.reset()
        before, sweep, sweeps = [*self._sweeps], self.sweep, self._sweeps
        start, elapsed = perf_counter(), 0.0
        while elapsed < seconds or len(sweeps) < len(before) + 2:
            sweeps.append(sweep())
            elapsed = perf_counter() - start
        return self.count(sweeps) - (self.count(before) if before else 0), elapsed


def count_rows(sweeps: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Count the env steps of rows of all envs, given as terminations and truncations; a row after an end resets."""
    ended = np.logical_or.reduce(np.array(sweeps, np.bool_), axis=1)
    return ended.size - int(np.count_nonzero(ended[:-1]))


def make_env(env: str) -> Any:
    """Make an env with whatever Gymnasium there is."""
    import gymnasium

    if env.startswith("ALE/"):
        import_module("ale_py")
    return gymnasium.make(env)


def actions_of(setup: Setup) -> list[Any]:
    """Random actions of all envs for some steps."""
    from gymnasium.vector.utils import batch_space

    env = make_env(setup.env["env"])
    drawn = drawn_actions(batch_space(env.action_space, setup.num_envs))
    env.close()
    return drawn


def in_turn(reset: Callable[[], object], step: Callable[[Any], Any], actions: list[Any], resets_next: bool) -> Stepper:
    """Step envs with actions in turn; `step` returns terminations and truncations, which belong to the caller.

    Rows after an episode's end reset if `resets_next`; else all rows are env steps.
    """
    turns = cycle(actions)
    count = count_rows if resets_next else lambda sweeps: sum(len(terminations) for terminations, _ in sweeps)
    return Stepper(reset, lambda: step(next(turns)), count)
