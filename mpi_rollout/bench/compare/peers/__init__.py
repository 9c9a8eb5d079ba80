"""Systems of others, each in a module of its own, which imports it.

Another Python may run them, which lacks what this program needs besides NumPy, and has an older Gymnasium.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_rollout.bench.compare.setups import Setup, actions_of
from mpi_rollout.bench.compare.turns import Ends, NextStepRows

if TYPE_CHECKING:
    import gymnasium


def make_env(env: str) -> "gymnasium.Env":
    """Make an env with whatever Gymnasium there is."""
    import gymnasium

    if env.startswith("ALE/"):
        import_module("ale_py")
    return gymnasium.make(env)


def env_function(setup: Setup) -> "Callable[[], gymnasium.Env]":
    """Return what makes an env; processes of any kind of start can be sent it."""
    return partial(make_env, setup.env)


def drawn_actions(setup: Setup) -> list[Any]:
    """Return random actions of all envs for some steps, the same for all systems."""
    env = make_env(setup.env)
    drawn = actions_of(env.action_space, setup.num_envs)
    env.close()
    return drawn


class ActionsInTurn:
    """Envs that are given actions which were drawn before.

    Parameters
    ----------
    reset, step, close
        What the system calls so; `step` returns terminations and truncations, which belong to the caller.
    actions
        For each of some steps those of all envs; used in turn.
    resets_in_next_step
        A row after an episode's end is a reset; else all rows are env steps.
    """

    def __init__(
        self,
        reset: Callable[[], object],
        step: Callable[[Any], Ends],
        close: Callable[[], object],
        actions: Sequence[Any],
        resets_in_next_step: bool,
    ):
        self._reset, self._step, self._close, self._actions = reset, step, close, cycle(actions)
        self._rows = NextStepRows() if resets_in_next_step else None

    def reset(self) -> None:
        if self._rows is not None:
            self._rows.begin()
        self._reset()

    def sweep(self) -> Ends:
        return self._step(next(self._actions))

    def count(self, sweeps: Sequence[Ends]) -> int:
        if self._rows is not None:
            return self._rows.count(sweeps)
        return sum(np.size(terminations) for terminations, _ in sweeps)

    def close(self) -> None:
        self._close()


class Sampler:
    """A system that chooses actions by itself: a sweep is what it gives at a time.

    Parameters
    ----------
    reset, sample, close
        `sample` returns how many env steps it has given.
    """

    def __init__(self, reset: Callable[[], object], sample: Callable[[], int], close: Callable[[], object]):
        self._reset, self.sweep, self._close = reset, sample, close

    def reset(self) -> None:
        self._reset()

    def count(self, sweeps: Sequence[int]) -> int:
        return sum(sweeps)

    def close(self) -> None:
        self._close()
