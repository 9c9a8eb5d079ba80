"""Episodes once more, from their seeds and actions: envs take steps of a run again.

An episode is a function of its seed and its actions, for an env that keeps nothing from one episode to the next and
draws from its own generator alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.seeding import Reproducibility, episode_seeds
from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.errors import EnvError


@dataclass(frozen=True)
class Past:
    """Where the envs of a run stood after `num_steps` steps; arrays of one element per env."""

    seed: int
    num_steps: int
    episodes: np.ndarray  # How many the env had finished.
    starts: np.ndarray  # The step in which its running one began; `num_steps` + 1 if the last step ended the last one.
    # Without a promise of EPISODE envs come back by all of their steps, not by the running episodes.
    reproducibility: Reproducibility = Reproducibility.EPISODE
    first_env: int = 0  # The index of env 0 in a larger run, from which seeds follow.
    given_seeds: tuple[int, ...] = ()  # Of the running episodes, where they do not follow from the seed of the run.

    @property
    def is_by_episodes(self) -> bool:
        """Whether the running episodes are enough to bring the envs back."""
        return self.reproducibility == Reproducibility.EPISODE

    @property
    def first_steps(self) -> np.ndarray:
        """The first step that each env has to take again."""
        return self.starts if self.is_by_episodes else np.zeros_like(self.starts)

    @property
    def first_step(self) -> int:
        """The first step that has to be taken again."""
        return int(min(self.first_steps.min(), self.num_steps))

    def seeds(self, env_index: int, extra: int = 0) -> Iterator[int]:
        """Return the seeds of an env's next episodes: the running one's first, or that of `extra` episodes later."""
        if self.given_seeds:
            return iter(self.given_seeds[env_index : env_index + 1])
        return episode_seeds(self.seed, self.first_env + env_index, int(self.episodes[env_index]) + extra)


class ReplayingEnvs:
    """A slice whose envs take their running episodes again, each from the step in which it began.

    Call `begin`, then `step` for each step from `past.first_step` on, then `finish`, and go on with `step` until
    `is_over`.  `take_step` steps the envs in the place of their own `step`.
    """

    def __init__(self, envs: VectorEnv, env_indices: range, past: Past, take_step: Callable[[Tree, int], Step]):
        assert isinstance(envs, LoopVectorEnv | NativeVectorEnv), "the ranks of a run make their envs"
        mine = slice(env_indices.start, env_indices.stop)
        self._envs, self._env_indices, self._past = envs, env_indices, past
        self._episodes, self._starts = past.episodes[mine].copy(), past.starts[mine].copy()
        self._num_steps, self._take_step = past.first_step, take_step

    @property
    def is_over(self) -> bool:
        """Whether no episode is left to be begun here."""
        return self._num_steps > self._past.num_steps

    def begin(self) -> Reset:
        """Begin the episodes of the first step; return what `reset` returns.  The other envs wait for theirs."""
        if isinstance(self._envs, LoopVectorEnv):
            self._envs.failing = {}
            for place, env_index in enumerate(self._env_indices):
                self._envs.seed_episodes(place, self._past.seeds(env_index), int(self._episodes[place]))
                self._envs.hold(place)
            return self._begin_episodes(self._starts == self._num_steps)
        outcome = self._envs.reset(seed=self._past.seed)
        is_due = self._starts == self._num_steps
        return self._begin_episodes(is_due) if is_due.any() else outcome  # Some envs refuse an empty mask.

    def step(self, actions: Tree, row: int) -> Step:
        """Take a step; then begin the episodes that began in it."""
        observations, *results, infos = self._take_step(actions, row)
        self._num_steps += 1
        is_due = self._starts == self._num_steps
        if is_due.any():
            observations, of_reset = self._begin_episodes(is_due)
            results = [np.where(is_due, 0, array).astype(array.dtype) for array in results]
            if isinstance(infos, dict):
                infos = {**infos, **of_reset}
            else:  # A loop's, as a rank sends them.
                infos = [(row, info) for row, info in infos if not is_due[row]] + of_reset
        rewards, terminations, truncations = results
        return observations, rewards, terminations, truncations, infos

    def _begin_episodes(self, mask: np.ndarray) -> Reset:
        if isinstance(self._envs, LoopVectorEnv):
            return self._envs.begin_some(np.flatnonzero(mask).tolist())
        return self._envs.reset(options={"reset_mask": mask, "episodes": self._episodes})

    def finish(self, lost: Sequence[int]) -> None:
        """Get ready for the next step of the run; envs that did not reproduce themselves begin a new episode in it."""
        is_lost, num_steps = np.isin(self._env_indices, lost), self._past.num_steps
        self._episodes += is_lost
        self._starts[is_lost] = num_steps + 1
        if isinstance(self._envs, LoopVectorEnv):  # It begins episodes in its own step, and gathers all infos then.
            self._replace_failed(self._envs, is_lost)
            for place in np.flatnonzero(self._starts > num_steps):
                seeds = self._past.seeds(self._env_indices[place], extra=int(is_lost[place]))
                self._envs.seed_episodes(int(place), seeds, int(self._episodes[place]))
                self._envs.end_episode(int(place))
            self._num_steps = num_steps + 1

    def _replace_failed(self, envs: LoopVectorEnv, is_lost: np.ndarray) -> None:
        failing, envs.failing = envs.failing or {}, None
        for place in failing:
            if not is_lost[place]:  # It should have been seen that it is truncated.
                raise EnvError(f"env {self._env_indices[place]} failed when its running episode was begun again")
            envs.replace(place)
