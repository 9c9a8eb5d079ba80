"""The wrappers that `gymnasium.make` puts around every env: what to step below them, and counting for TimeLimit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gymnasium
import numpy as np
from gymnasium import wrappers

STEPPED_OVER = (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker)
NEVER = 2**62  # A step that no env takes.


def step_over_wrappers(env: gymnasium.Env) -> tuple[gymnasium.Env, wrappers.TimeLimit | None]:
    """Find what to step below the outermost wrappers that `gymnasium.make` adds, and the time limit among them.

    PassiveEnvChecker and OrderEnforcing guard against mistakes that the loop does not make.  The loop itself counts for
    one TimeLimit.  Any other wrapper changes what the env does: it and all that is below it are stepped.
    """
    limit = None
    # No subclasses: they may do more.
    while isinstance(env, gymnasium.Wrapper) and type(env) in STEPPED_OVER:
        if isinstance(env, wrappers.TimeLimit):
            if limit is not None:
                break
            limit = env
        env = env.env
    return env, limit


def innermost(env: object) -> object:
    """Return the env below all wrappers, also below this program's own around an env of another interface."""
    for name in ("unwrapped", "dm_env", "parallel_env"):
        env = getattr(env, name, env)
    return env


class TimeLimits:
    """The TimeLimit wrappers that a loop steps over, counted for all envs at once.

    `limits` has that of each env, if it has one.  The loop counts its steps in `num_steps`.  From `next_deadline` on it
    must call `apply` in every step.
    """

    def __init__(self, limits: Sequence[wrappers.TimeLimit | None]):
        self._wrappers = {index: wrapper for index, wrapper in enumerate(limits) if wrapper is not None}
        self._limits = np.full(len(limits), np.inf)
        self._starts = np.zeros(len(limits), np.int64)  # What `num_steps` was when an episode began.
        self.num_steps = 0
        self.next_deadline = 0.0
        self._take_back()

    def begin(self, index: int) -> None:
        """Note that one env begins an episode."""
        self._starts[index] = self.num_steps

    def hold(self, index: int) -> None:
        """Let no limit end an env's episode before the env begins another one: it takes no steps."""
        self._starts[index] = NEVER

    def replace(self, index: int, limit: wrappers.TimeLimit | None) -> None:
        """Count for a new env in the place of one, which is made as that one was."""
        if limit is not None:
            self._wrappers[index], self._limits[index] = limit, max(limit._max_episode_steps, 1)
        self.begin(index)
        self.next_deadline = self.num_steps  # The next `apply` computes it.

    def elapsed(self, index: int) -> int:
        """Return the number of steps in one env's episode."""
        return max(int(self.num_steps - self._starts[index]), 0)

    def apply(self, truncations: np.ndarray) -> None:
        """End the episodes that are as long as their limit.

        Episodes can only begin later than now, so none reaches its limit before the earliest deadline of now.
        """
        elapsed = np.maximum(self.num_steps - self._starts, 0)  # One that is held may begin an episode now.
        over = elapsed >= self._limits
        truncations |= over
        left = np.where(over, self._limits, self._limits - elapsed)
        self.next_deadline = self.num_steps + float(left.min())

    @contextmanager
    def in_wrappers(self) -> Iterator[None]:
        """While others use the envs, let their wrappers know how long episodes are; then take over what they say."""
        for index, wrapper in self._wrappers.items():
            if wrapper._elapsed_steps is not None:  # It has been reset.
                wrapper._elapsed_steps = int(self.num_steps - self._starts[index])
        try:
            yield
        finally:
            self._take_back()

    def _take_back(self) -> None:
        for index, wrapper in self._wrappers.items():
            self._starts[index] = self.num_steps - (wrapper._elapsed_steps or 0)
            self._limits[index] = max(wrapper._max_episode_steps, 1)  # No episode has no step.
        self.next_deadline = float((self._starts + self._limits).min())
