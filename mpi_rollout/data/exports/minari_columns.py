"""What Minari has of an episode."""

from collections.abc import Container
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Tree

STATISTICS = tuple(f"rewards_{name}" for name in ("sum", "mean", "std", "max", "min"))


def columns_of(episode: Any) -> dict[str, Tree]:
    """Return the members of an episode's group, as Minari names them."""
    truncations = episode.truncations
    if not (episode.terminated or episode.truncated):  # The end of the data has cut it: Minari's way to say so.
        truncations = truncations.copy()
        truncations[-1] = True
    return {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": truncations,
        "infos": infos_of(episode),  # An empty group, where there are none: without it Minari cannot print an episode.
    }


def infos_of(episode: Any) -> dict[str, Tree]:
    """Return infos, further columns, and what the policy gave besides actions as `extras`, all of length + 1."""
    extras = episode.extras
    named = {**episode.further, **episode.infos, **({extras_name(episode.infos): extras} if extras else {})}
    return {name: _longer(tree, episode.length) for name, tree in named.items()}


def extras_name(infos: Container[str]) -> str:
    """Return what a group of extras beside infos is called: an env may give an info of that name."""
    return "extras" if "extras" not in infos else "policy_extras"


def _longer(tree: Tree, length: int) -> Tree:
    """Add a row of zeros to arrays of `length`: no policy was asked about the last observation."""
    if isinstance(tree, dict):
        return {name: _longer(part, length) for name, part in tree.items()}
    return tree if len(tree) > length else np.concatenate([tree, np.zeros_like(tree[:1])])


def attributes_of(row: np.void, rewards: np.ndarray) -> dict[str, Any]:
    """Return the attributes of an episode's group: what Minari's collector stores, to the last bit."""
    number, length, seed = int(row["number"]), len(rewards), int(row["seed"])
    total = np.add.reduce(rewards)
    mean = total / length
    away = rewards - mean
    std = np.sqrt(np.add.reduce(away * away) / length)
    statistics = (total, mean, std, np.maximum.reduce(rewards), np.minimum.reduce(rewards))
    values = {"id": number, "total_steps": length, **({"seed": seed} if seed >= 0 else {})}
    return values | dict(zip(STATISTICS, map(float, statistics), strict=True))
