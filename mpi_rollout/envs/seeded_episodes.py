"""Natively vectorized envs that take a seed in each reset: their episodes get the seeds that a loop would give them.

Such envs reset by themselves in the step after an end, with random numbers that follow from all that they have done
before.  Here a second reset follows in the same step, of the envs that have just been reset, with the seeds of their
episodes.  Then an episode depends on its seed and its actions alone.

Seen with ale-py 0.12.1: a masked reset leaves the other envs as they are, and the episode that it begins has the bytes
of one that a new env begins with that seed.  It does so amid an episode, at its end, and after the reset that follows.
"""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.seeding import seeds_of_episodes
from mpi_rollout.core.spaces import Tree, set_spaces
from mpi_rollout.envs.inputs import Reset, Step

SEEDS_31_BITS = 0x7FFFFFFF  # C++ takes int32.


class SeededEpisodes(VectorEnv):
    """Envs whose episodes have seeds of their own, by masked resets.

    Until there is a seed, from `seed` or by `reset(seed=...)`, the envs are as they came.

    Parameters
    ----------
    envs
        They reset in the next step.  `reset(seed=seeds, options={"reset_mask": mask})` resets the envs of a bool mask
        with a seed each, an int32 array, and returns the observations of all envs.
    env_indices
        Of these envs in the job.
    seed
        Of the run.
    """

    reproducibility = Reproducibility.EPISODE
    has_episode_seeds = True

    def __init__(self, envs: VectorEnv, env_indices: range, seed: int | None = None) -> None:
        self._envs, self._env_indices, self._seed = envs, np.array(env_indices), seed
        self.metadata, self.spec = envs.metadata, envs.spec
        set_spaces(self, envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.render_mode = getattr(envs, "render_mode", None)
        self._episodes, self._over = np.full(self.num_envs, -1), np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begin episodes: episode 0 of each env at first and whenever there is a seed, else each env's next one.

        Parameters
        ----------
        seed
            Of the run.
        options
            "reset_mask", (num_envs,) bool: reset these envs only.  "episodes", (num_envs,) int64: begin these episodes.
            The envs get what else there is.
        """
        if seed is not None:
            self._seed = seed
            self._episodes[:] = -1
        if self._seed is None:
            return self._envs.reset(options=options)
        options = dict(options or {})
        places = np.flatnonzero(options.get("reset_mask", np.ones(self.num_envs, np.bool_)))
        episodes = np.asarray(options.pop("episodes", self._episodes + 1))
        self._episodes[places], self._over[places] = episodes[places], False
        seeds = seeds_of_episodes(self._seed, self._env_indices[places], episodes[places]) & SEEDS_31_BITS
        return self._envs.reset(seed=seeds.astype(np.int32), options=options)  # type: ignore[arg-type]  # A seed for each.

    def step(self, actions: Tree) -> Step:
        """Take a step; where an episode ended in the one before, begin the next one with its seed."""
        observations, rewards, terminations, truncations, infos = self._envs.step(actions)
        if self._over.any() and self._seed is not None:
            observations, of_reset = self.reset(options={"reset_mask": self._over.copy()})
            infos = {**infos, **of_reset}
        self._over = np.logical_or(terminations, truncations)
        return observations, rewards, terminations, truncations, infos

    @property
    def unwrapped(self) -> Any:
        return self._envs.unwrapped

    def render(self) -> Any:
        return self._envs.render()

    def close(self, **kwargs: Any) -> None:
        self._envs.close(**kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._envs, name)
