"""RLDS's view of an episode: one step for each observation, the last one without a valid action."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Tree


def steps_rlds(episode: Any) -> Iterator[dict[str, Any]]:
    """Yield the length + 1 steps of an episode as RLDS has them.

    Step t has `observation` t, `action` t, the `reward` that followed, `discount`, `is_first`, `is_last` and
    `is_terminal`; where the file has them also `info` of the observation, and `extra`, what the policy gave besides the
    action.  The last step has the last observation; its action, reward, discount and extra are zeros, without meaning.
    The discount is 0 where the env has ended the episode, else 1.

    Yields
    ------
    dict
        Arrays are views, numbers NumPy's; nested observations and actions are nested alike.
    """
    observations, actions, rewards, length = episode.observations, episode.actions, episode.rewards, episode.length
    more = {"info": episode.infos} if episode.infos else {}
    for step in range(length + 1):
        is_last = step == length
        taken = {"action": actions, "reward": rewards, **({"extra": episode.extras} if episode.extras else {})}
        taken |= episode.further
        ends = episode.terminated and step == length - 1
        yield {
            "observation": _at(observations, step),
            **{name: _zeros(tree) if is_last else _at(tree, step) for name, tree in taken.items()},
            "discount": np.float64(0 if is_last or ends else 1),
            "is_first": np.bool_(step == 0),
            "is_last": np.bool_(is_last),
            "is_terminal": np.bool_(is_last and episode.terminated),
            **{name: _at(tree, step) for name, tree in more.items()},
        }


def _at(tree: Tree, step: int) -> Tree:
    if isinstance(tree, dict):
        return {key: _at(part, step) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_at(part, step) for part in tree)
    return tree[step]


def _zeros(tree: Tree) -> Tree:
    if isinstance(tree, dict):
        return {key: _zeros(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_zeros(part) for part in tree)
    return np.zeros(tree.shape[1:], tree.dtype)[()]
