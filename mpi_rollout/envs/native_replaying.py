"""Natively vectorized envs once more, action by action: their running episodes, or one of them alone.

These envs promise EPISODE: a reset begins any episode, by its number, in some of them.  All of them step at once, so
none waits until the step in which its episode began.  Until then it does something that nobody looks at.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.replaying import Past, Restoring
from mpi_rollout.envs.rollout import RolloutColumns

COLUMNS = "observations", "rewards", "terminations", "truncations"


class NativeRestoring:
    """The running episodes of a natively vectorized slice, taken again; as `replaying.Restoring` does it for a loop."""

    def __init__(self, envs: NativeVectorEnv, env_indices: range, past: Past):
        mine = slice(env_indices.start, env_indices.stop)
        self._envs, self._num_steps = envs, past.num_steps
        self._env_indices, self._seed = env_indices, past.seed
        self._episodes, self._starts = past.episodes[mine], past.starts[mine]

    def begin(self) -> Reset:
        """Reset the envs, those with a running episode to its beginning; return what `reset` returns."""
        self._envs.reset(seed=self._seed)
        return begin_episodes(self._envs, self._starts <= self._num_steps, self._episodes)

    def step(self, step: int, actions: Tree) -> Step:
        """Take a step of the run again; then begin the episodes that were begun in it."""
        observations, *results, infos = self._envs.step(actions)
        begun = self._starts == step + 1
        if begun.any():
            observations, infos = begin_episodes(self._envs, begun, self._episodes)
        rewards, terminations, truncations = results
        return observations, rewards, terminations, truncations, infos

    def finish(self, lost: Sequence[int]) -> None:
        """Get ready for the next step of the run; envs that did not reproduce themselves begin a new episode in it."""
        is_lost = np.isin(self._env_indices, lost)
        due = is_lost | (self._starts > self._num_steps)
        if due.any():
            begin_in_next_step(self._envs, due, self._episodes + is_lost)


def restoring_of(envs: VectorEnv, env_indices: range, past: Past) -> Restoring | NativeRestoring:
    """Return what brings the envs of a run, with these indices, back to where they were."""
    if isinstance(envs, LoopVectorEnv):
        return Restoring(envs, env_indices, past)
    assert isinstance(envs, NativeVectorEnv), "the ranks of a run make their envs"
    return NativeRestoring(envs, env_indices, past)


def begin_episodes(envs: NativeVectorEnv, mask: np.ndarray, episodes: np.ndarray) -> Reset:
    """Begin the episodes with these numbers in the envs of a mask; return what `reset` returns, of all envs.

    Parameters
    ----------
    mask, episodes
        Of shape (num_envs,).
    """
    if not mask.any():  # Which some envs refuse.
        return envs.reset(options={"episodes": episodes})
    return envs.reset(options={"reset_mask": mask, "episodes": episodes})


def begin_in_next_step(envs: NativeVectorEnv, mask: np.ndarray, episodes: np.ndarray) -> None:
    """Have the envs of a mask, whatever they are doing, begin these episodes in the next step, as after an end."""
    plain_step, plain_rollout = envs.step, getattr(envs, "rollout", None)
    is_due = True

    def step(actions: Any) -> Step:
        nonlocal is_due
        outcome = plain_step(actions)
        if not is_due:  # Later in the same fragment.
            return outcome
        is_due = False
        envs.step = plain_step  # type: ignore[method-assign]
        observations, infos = begin_episodes(envs, mask, episodes)
        rewards, terminations, truncations = (np.where(mask, 0, array).astype(array.dtype) for array in outcome[1:4])
        return observations, rewards, terminations, truncations, {**outcome[4], **infos}

    def rollout(actions: np.ndarray, columns: RolloutColumns) -> None:
        assert plain_rollout is not None
        envs.rollout = plain_rollout
        for name, values in zip(COLUMNS, step(actions[0]), strict=False):
            if (column := getattr(columns, name)) is not None:
                column[0] = values
        if len(actions) > 1:
            rest = [None if column is None else column[1:] for column in (getattr(columns, name) for name in COLUMNS)]
            plain_rollout(actions[1:], RolloutColumns(*rest))

    envs.step = step  # type: ignore[method-assign]
    if plain_rollout is not None:
        envs.rollout = rollout
