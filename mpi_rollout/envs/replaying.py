"""Episodes once more, action by action, from their seeds: to bring envs back to where they were, or to compare.

An episode is a function of its seed and its actions, for an env that keeps nothing from one episode to the next and
draws from its own generator alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.layout import RESULTS
from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.core.spaces import leaves, tree_of
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import EnvError


@dataclass(frozen=True)
class Past:
    """Where the envs of a run stood after `num_steps` steps; arrays of one element per env.

    Parameters
    ----------
    episodes
        How many episodes the env had finished.
    starts
        The step in which its running episode began; `num_steps` + 1 if the last one ended in the last step.
    reproducibility
        What the envs promised.  Without a promise of EPISODE they come back by all of their steps, not by the running
        episodes.
    """

    seed: int
    num_steps: int
    episodes: np.ndarray
    starts: np.ndarray
    reproducibility: Reproducibility = Reproducibility.EPISODE

    @property
    def first_step(self) -> int:
        """The first step that has to be taken again."""
        is_by_episodes = self.reproducibility == Reproducibility.EPISODE
        return int(min(self.starts.min(), self.num_steps)) if is_by_episodes else 0

    def seeds(self, env_index: int, extra: int = 0) -> Iterator[int]:
        """Return the seeds of an env's next episodes: the running one's first, or that of `extra` episodes later."""
        return islice(episode_seeds(self.seed, env_index), int(self.episodes[env_index]) + extra, None)


class Restoring:
    """The running episodes of a slice, taken again.  Envs wait until the step in which their episode began.

    The caller compares what comes with what was recorded: an env's row has what it observed from the step on in which
    its episode began.
    """

    def __init__(self, envs: LoopVectorEnv, env_indices: range, past: Past):
        self._envs, self._env_indices, self._past = envs, env_indices, past

    def begin(self) -> Reset:
        """Reset the envs with their running episodes' seeds, if one is running; return what `reset` returns."""
        past, envs, space = self._past, self._envs, self._envs.single_observation_space
        failing = envs.failing = set()
        for place, env_index in enumerate(self._env_indices):
            envs.seed_episodes(place, past.seeds(env_index), int(past.episodes[env_index]))
        is_running = [past.starts[env_index] <= past.num_steps for env_index in self._env_indices]
        outputs = envs.reset_some(np.flatnonzero(is_running).tolist())
        for place, observation in enumerate(copies_of(space, envs.columns.observations, envs.num_envs)):
            if place not in failing:
                envs.hold(place, observation)
        return outputs

    def step(self, step: int, actions: object) -> Step:
        """Take a step of the run again."""
        self._release(step)
        return self._envs.step(actions)

    def finish(self, lost: Sequence[int]) -> None:
        """Get ready for the next step of the run; envs that did not reproduce themselves begin a new episode in it."""
        past, failing, self._envs.failing = self._past, self._envs.failing or (), None
        for place in failing:
            if self._env_indices[place] not in lost:  # It should have been seen that it is truncated.
                raise EnvError(f"env {self._env_indices[place]} failed when its running episode was begun again")
            self._envs.replace(place)
        for step in range(past.num_steps, past.num_steps + 2):
            self._release(step)
        for place, env_index in enumerate(self._env_indices):
            is_lost = env_index in lost
            if is_lost or past.starts[env_index] > past.num_steps:
                num_before = int(past.episodes[env_index]) + is_lost
                self._envs.seed_episodes(place, past.seeds(env_index, extra=int(is_lost)), num_before)
                self._envs.end_episode(place)

    def _release(self, step: int) -> None:
        for place, env_index in enumerate(self._env_indices):
            if self._past.starts[env_index] == step and place not in (self._envs.failing or ()):
                self._envs.release(place)


@dataclass(frozen=True)
class StoredEpisode:
    """An episode of one env, as it is in a file.

    Parameters
    ----------
    number
        Of the episode among those of its env.
    actions, observations
        An array of shape (length, ...) for each leaf of the space, of observations one row more.
    results
        An array of shape (length,) for each of `layout.RESULTS`.
    """

    seed: int
    number: int
    actions: list[np.ndarray]
    observations: list[np.ndarray]
    results: list[np.ndarray]


@dataclass(frozen=True)
class Difference:
    """What an env gave in step `step` of an episode, counted from 0, where a file has something else."""

    step: int
    name: str
    stored: np.ndarray
    replayed: np.ndarray


def replay_episode(envs: VectorEnv, begin: Callable[[], Reset], episode: StoredEpisode) -> Difference | None:
    """Step one env through an episode; return the first difference, if there is one; see `replayed_rows`."""
    return next(filter(None, replayed_rows(envs, begin, episode)), None)


def replayed_rows(envs: VectorEnv, begin: Callable[[], Reset], episode: StoredEpisode) -> Iterator[Difference | None]:
    """Step one env through an episode; yield, after its reset and after each step, what differs there.

    Parameters
    ----------
    envs
        One env.
    begin
        Begins the episode, and returns what `reset` returns.
    """
    space, parts = envs.single_action_space, leaves(envs.single_observation_space)
    names = [f"observations/{leaf.path}".rstrip("/") for leaf in parts]
    result_names = [leaf.path for leaf in RESULTS]
    observations, _ = begin()
    yield _difference(0, names, episode.observations, [leaf.of(observations) for leaf in parts])
    for step in range(len(episode.results[0])):
        actions = tree_of(space, (array[step : step + 1] for array in episode.actions))
        observations, *results, _ = envs.step(actions)
        yield _difference(step, result_names, episode.results, results) or _difference(
            step + 1, names, episode.observations, [leaf.of(observations) for leaf in parts]
        )


def _difference(
    step: int, names: Sequence[str], stored: Sequence[np.ndarray], replayed: Sequence[np.ndarray]
) -> Difference | None:
    """Compare row `step` of stored arrays with row 0 of those that an env gave, byte by byte.

    What natively vectorized envs give may have another dtype than what is stored of it.
    """
    for name, rows, given in zip(names, stored, replayed, strict=True):
        got = np.asarray(given[0]).astype(rows.dtype, copy=False)
        if rows[step].tobytes() != got.tobytes():
            return Difference(step, name, rows[step], got.copy())  # The next step overwrites it.
    return None


def copies_of(space: spaces.Space, observations: object, num_envs: int) -> list[object]:
    """Copy the single observations out of batched ones."""
    arrays = [np.array(leaf.of(observations)) for leaf in leaves(space)]
    return [tree_of(space, [array[row] for array in arrays]) for row in range(num_envs)]
