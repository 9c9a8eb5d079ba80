"""Envs of this program, of Gymnasium and of the like, as a turn steps them: see `turns`.

A stepper has `reset`, `sweep` and `count`.  A sweep is one step of all envs, or what one `recv` brings, and returns
what is needed to count later: nothing is counted while the clock runs.  A sweep of a bare loop of fast envs is several
steps of all envs.
"""

from collections.abc import Sequence
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.bench.compare.setups import actions_of
from mpi_rollout.bench.compare.turns import SEED, BatchSystem, Ends, NextStepRows
from mpi_rollout.collect.fragments import GROWTH
from mpi_rollout.core.spaces import rows_of

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from mpi_rollout.train.vector_env import MPIVectorEnv

STEPS_PER_LOOK = 64  # Of a bare loop at most between two looks at the clock, which takes 1 % of a CartPole's step.
FRAGMENT_S = 0.1  # At most, so that a turn ends in time.
LOOK_S = 0.001  # Steps that take longer need no more of them between two looks, and would overrun the window.


class BareStepper:
    """A loop over single envs, with nothing around it.

    Parameters
    ----------
    actions
        For each of some steps one action per env, used in turn.
    """

    def __init__(self, envs: Sequence[gymnasium.Env], actions: Sequence[Sequence[object]], first_env: int = 0):
        self._envs, self._first = envs, first_env
        self._steps = [env.step for env in envs]
        self._actions, self._most_per_look = actions, max(1, STEPS_PER_LOOK // len(envs))
        self._look_every(1)

    def _look_every(self, num_steps: int) -> None:
        """Let a sweep be this many steps of all envs."""
        starts = range(0, len(self._actions), num_steps)
        self._per_look, self._looks = num_steps, cycle([self._actions[at : at + num_steps] for at in starts])

    def reset(self) -> None:
        for index, env in enumerate(self._envs):
            env.reset(seed=SEED + self._first + index)

    def sweep(self) -> int:
        """Take some steps of all envs; return how many env steps those were.

        The first sweeps, those of the warm-up, try how many steps fit between two looks at the clock.
        """
        start = perf_counter()
        env_steps = self._step_rows()
        if self._per_look < self._most_per_look and perf_counter() - start < LOOK_S / 2:
            self._look_every(min(2 * self._per_look, self._most_per_look))
        return env_steps

    def _step_rows(self) -> int:
        steps, rows = self._steps, next(self._looks)
        for row in rows:
            for index, (step, action) in enumerate(zip(steps, row, strict=True)):
                _, _, terminated, truncated, _ = step(action)
                if terminated or truncated:
                    self._envs[index].reset()
        return len(rows) * len(steps)

    def count(self, sweeps: Sequence[int]) -> int:
        return sum(sweeps)

    def close(self) -> None:
        for env in self._envs:
            env.close()


class VectorSteps(Protocol):
    """What a `VectorStepper` needs of a vector env."""

    num_envs: int

    def reset(self, *, seed: int) -> object: ...

    def step(self, actions: object, /) -> tuple: ...

    def close(self) -> None: ...


class VectorStepper:
    """A Gymnasium vector env in NEXT_STEP mode: the row after an episode's end resets and is no env step."""

    def __init__(self, envs: VectorSteps, actions: Sequence[object]):
        self._envs, self._actions = envs, cycle(actions)
        self._rows = NextStepRows()
        self.count = self._rows.count

    def reset(self) -> None:
        self._envs.reset(seed=SEED)
        self._rows.begin()

    def sweep(self) -> Ends:
        _, _, terminations, truncations, _ = self._envs.step(next(self._actions))
        return terminations, truncations

    def close(self) -> None:
        self._envs.close()


def of_vector_env(envs: VectorEnv) -> BatchSystem:
    """Make a system of a Gymnasium vector env."""
    return BatchSystem(VectorStepper(envs, actions_of(envs.single_action_space, envs.num_envs)))


class FragmentStepper:
    """Envs of this program with actions that are known before: a sweep is several steps in one exchange.

    Sweeps get longer, up to `most` steps, as long as they are short.  `actions` are of `num_steps` steps, used in turn.
    """

    def __init__(self, envs: "MPIVectorEnv", actions: Any, num_steps: int, most: int):
        self._envs, self._actions, self._num_actions, self._most = envs, actions, num_steps, most
        self._ends = VectorStepper(envs, [])
        self.reset, self.close = self._ends.reset, self._ends.close
        self._length, self._start = 1, 0

    def sweep(self) -> Ends:
        began, start = perf_counter(), self._start
        batch = self._envs.collect(self._length, rows_of(self._actions, slice(start, start + self._length)))
        self._start = (start + self._length) % self._num_actions
        is_short = perf_counter() - began < FRAGMENT_S / GROWTH
        if is_short and self._length < self._most and self._start % (GROWTH * self._length) == 0:
            self._length = min(GROWTH * self._length, self._most)
        return batch["terminations"], batch["truncations"]

    def count(self, sweeps: Sequence[Ends]) -> int:
        return self._ends.count([ends for sweep in sweeps for ends in zip(*sweep, strict=True)])


class VecEnvStepper:
    """A Stable-Baselines3 vec env: it resets in the step that ends an episode, so that all rows are env steps."""

    def __init__(self, envs: "VecEnv", actions: Sequence[np.ndarray]):
        self._envs, self._actions = envs, cycle(actions)

    def reset(self) -> None:
        self._envs.seed(SEED)
        self._envs.reset()

    def sweep(self) -> int:
        self._envs.step(next(self._actions))
        return self._envs.num_envs

    def count(self, sweeps: Sequence[int]) -> int:
        return sum(sweeps)

    def close(self) -> None:
        self._envs.close()


class PartsStepper:
    """Envs that come back some at a time and get actions at once; rows after an episode's end are no env steps.

    The first sweep after a reset sends to all.  After the last one of a turn, `drain` waits for what is under way, so
    that the next reset, which is timed, waits for no step.
    """

    def __init__(self, parts: "Parts", num_envs: int, actions: Sequence[object]):
        self._parts, self._actions = parts, cycle(actions)
        self._ended, self._num_pending = np.zeros(num_envs, np.bool_), 0

    def reset(self) -> None:
        self._parts.reset()
        self._ended[:] = False

    def sweep(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not self._num_pending:
            self._parts.send(next(self._actions), None)
            self._num_pending = len(self._ended)
        terminations, truncations, indices = self._parts.recv()
        self._parts.send(rows_of(next(self._actions), indices), indices)
        return terminations, truncations, indices

    def count(self, sweeps: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> int:
        env_steps, ended = 0, self._ended
        for terminations, truncations, indices in sweeps:
            env_steps += len(indices) - int(np.count_nonzero(ended[indices]))
            ended[indices] = terminations | truncations
        return env_steps

    def drain(self) -> None:
        """Receive all that was sent."""
        while self._num_pending:
            self._num_pending -= len(self._parts.recv()[2])

    def close(self) -> None:
        self.drain()
        self._parts.close()


class Parts(Protocol):
    """What a `PartsStepper` steps: reset all, send to some (None: to all), receive some."""

    def reset(self) -> None: ...

    def send(self, actions: object, indices: np.ndarray | None) -> None: ...

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return terminations, truncations and indices of some envs."""
        ...

    def close(self) -> None: ...
