"""What a policy may take besides observations: where episodes begin, its own state, and infos of the envs.

A policy that remembers has a state for each env, in arrays with the env axis first.  It is stored nowhere: a continued
run shows the policy the observations of the running episodes again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np
from gymnasium.spaces import MultiBinary

from mpi_rollout.core.column_types import MASK_NAME
from mpi_rollout.core.spaces import Space, mask_sizes
from mpi_rollout.errors import ActionError, Option, UsageError

STATE, STARTS, INFOS = "state", "episode_starts", "infos"
NONE: frozenset[str] = frozenset()
POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD


def names_taken(act: Callable[..., object], num_given: int, name: str) -> frozenset[str]:
    """Return which of state, episode_starts and infos a policy takes, besides its first `num_given` arguments.

    UsageError if it needs its state and cannot tell when to drop it, or has one of them where others are given.
    """
    try:
        parameters = list(signature(act).parameters.values())
    except (TypeError, ValueError):  # C code may not tell its signature.
        return NONE
    given = [one.name for one in parameters if one.kind in POSITIONAL][:num_given]
    if misplaced := {STATE, STARTS, INFOS}.intersection(given[1:]):  # Many call observations a state.
        raise UsageError(
            Option("policy"), f" {name} takes {min(misplaced)} too early; what a factory returns needs"
            " act(observations, env_indices, uniforms, ...)",
        )  # fmt: skip
    others = {one.name: one for one in parameters if one.name not in given and one.kind != Parameter.VAR_KEYWORD}
    names = {STATE, STARTS, INFOS} & others.keys()
    if STATE in names and STARTS not in names:
        if others[STATE].default is Parameter.empty:
            raise UsageError(
                Option("policy"),
                f" {name} takes {STATE}, and must also take {STARTS}, which says when an env begins with a new state",
            )
        names.remove(STATE)  # It is for another caller: `predict` of Stable-Baselines3 has such an argument.
    return frozenset(names)


def check_infos(taken: frozenset[str], has_infos: bool, name: str, action_space: Space) -> None:
    """Refuse a policy that takes infos, where there are none with types."""
    if INFOS in taken and not has_infos:
        raise UsageError(
            Option("policy"), f" {name} takes infos, and nobody asks the envs for them; give the names and types of "
            "those that it needs, such as ", *infos_for(action_space),
        )  # fmt: skip


def infos_for(action_space: Space) -> tuple[Option | str, ...]:
    """Return how one asks for infos: for the masks of these actions, if they can have any."""
    sizes = mask_sizes(action_space)
    if isinstance(action_space, MultiBinary):  # sb3-contrib's masks have two entries for each bit.
        sizes = [2] * int(np.prod(action_space.shape))
    if not sizes:
        return (Option("store_infos", {"lives": "int"}),)
    return (
        Option("store_infos", {MASK_NAME: ["int8", sum(sizes)]}),
        " for action masks; where the infos of an env have none, its method action_masks() is asked",
    )


class PolicyView:
    """What some envs show their policy besides observations, by what their steps return.

    The row after an episode's end, which only resets the env, counts as a beginning too: the action of that row is
    stored, and must not depend on an episode that a continued run does not know any more.
    """

    def __init__(self, num_envs: int, has_reset_rows: bool):
        self._has_reset_rows = has_reset_rows
        self._starts, self._ended = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self.infos: dict[str, np.ndarray] = {}  # Of the last observations, by their names in a file.
        self._older = self.infos

    def note_step(self, terminations: np.ndarray, truncations: np.ndarray) -> None:
        """Note which episodes ended in a step."""
        ended = np.logical_or(terminations, truncations)
        self._starts |= ended | self._ended
        self._ended = ended & self._has_reset_rows

    def note_infos(self, infos: Mapping[str, np.ndarray]) -> None:
        """Copy the infos that came with the last observations."""
        self._older, self.infos = self.infos, {name: array.copy() for name, array in infos.items()}

    def note_reset(self, mask: np.ndarray | None) -> None:
        """Note that all envs, or those of a mask, were reset, after their infos: the others have said nothing new."""
        is_reset = np.ones_like(self._starts) if mask is None else mask
        self._starts |= is_reset
        self._ended &= ~is_reset
        for name, array in self._older.items():
            self.infos[name][~is_reset] = array[~is_reset]

    def resume(self, starts: np.ndarray, step: int, infos: Mapping[str, np.ndarray]) -> None:
        """Go on with step `step` of envs whose running episodes began in these steps, and which showed these infos."""
        self._starts, self._ended = starts >= step, (starts > step) & self._has_reset_rows
        self.note_infos(infos)

    def take_starts(self) -> np.ndarray:
        """Return which envs have begun episodes since the last call."""
        starts, self._starts = self._starts, np.zeros_like(self._starts)
        return starts


def kept(state: Any, size: int) -> Any:
    """Copy a state: an array or tensor, or a dict, tuple or list of them; None stays.

    ActionError if one of its arrays is not of `size` envs.
    """
    if state is None:
        return None
    if isinstance(state, dict):
        return {name: kept(part, size) for name, part in state.items()}
    if isinstance(state, tuple | list):
        parts = [kept(part, size) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)  # A named tuple stays one.
    array = state.detach().clone() if hasattr(state, "detach") else np.array(state)  # Of torch, on any device.
    if array.ndim == 0 or len(array) != size:
        raise ActionError(
            f"the policy's state must have arrays of {size} envs on the first axis, got one of shape "
            f"{tuple(array.shape)}; move the axis of the envs there"
        )
    return array


@dataclass(frozen=True)
class PastRows:
    """Consecutive rows of a run, the first of them `step`, with which its policy is reminded.

    `observations` and `infos` are of shape (num_rows, num_envs, ...).  `starts` are the steps in which the envs'
    running episodes began, and step `num_steps` is the next one to be taken.
    """

    step: int
    num_steps: int
    observations: list[np.ndarray]
    infos: dict[str, np.ndarray]
    starts: np.ndarray
