"""What a policy may take besides observations: where episodes begin, its own state, and infos of the envs.

A policy that remembers has a state for each env, in arrays with the env axis first.  It is stored nowhere: a continued
run shows the policy the observations of the running episodes again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, tree_of
from mpi_rollout.errors import ActionError, Option, UsageError

STATE, STARTS, INFOS = "state", "episode_starts", "infos"
NONE: frozenset[str] = frozenset()
POSITIONAL = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD


class Shown(NamedTuple):
    """What some envs show besides observations: arrays with the env axis first; infos by their names in a file."""

    episode_starts: np.ndarray
    infos: Mapping[str, np.ndarray]


def names_taken(act: Callable[..., object], num_given: int, name: str) -> frozenset[str]:
    """Return which of state, episode_starts and infos a policy takes, besides its first `num_given` arguments.

    UsageError if it needs its state and cannot tell when to drop it.
    """
    try:
        parameters = list(signature(act).parameters.values())
    except (TypeError, ValueError):  # C code may not tell its signature.
        return NONE
    given = [one.name for one in parameters if one.kind in POSITIONAL][:num_given]
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


def check_infos(taken: frozenset[str], has_infos: bool, name: str) -> None:
    """Refuse a policy that takes infos, where there are none with types."""
    if INFOS in taken and not has_infos:
        way_out = 'the names and types of those that it needs, such as {"action_mask": ["int8", 4]}'
        raise UsageError(
            Option("policy"), f" {name} takes infos, and nobody asks the envs for them; give ", Option("store_infos"),
            f" {way_out}",
        )  # fmt: skip


class PolicyView:
    """What some envs show their policy besides observations, by what their steps return.

    The row after an episode's end, which only resets the env, counts as a beginning too: the action of that row is
    stored, and must not depend on an episode that a continued run does not know any more.
    """

    def __init__(self, num_envs: int, has_reset_rows: bool):
        self._has_reset_rows = has_reset_rows
        self._starts, self._ended = np.ones(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._infos: dict[str, np.ndarray] = {}
        self._older = self._infos

    def note_step(self, terminations: np.ndarray, truncations: np.ndarray) -> None:
        """Note which episodes ended in a step."""
        ended = np.logical_or(terminations, truncations)
        self._starts |= ended | self._ended
        self._ended = ended & self._has_reset_rows

    def note_infos(self, infos: Mapping[str, np.ndarray]) -> None:
        """Copy the infos that came with the last observations."""
        self._older, self._infos = self._infos, {name: array.copy() for name, array in infos.items()}

    def note_reset(self, mask: np.ndarray | None) -> None:
        """Note that all envs, or those of a mask, were reset, after their infos: the others have said nothing new."""
        self._starts |= True if mask is None else mask
        if mask is not None:
            for name, array in self._older.items():
                self._infos[name][~mask] = array[~mask]

    def resume(self, starts: np.ndarray, step: int) -> None:
        """Go on with step `step` of envs whose running episodes began in these steps."""
        self._starts, self._ended = starts >= step, (starts > step) & self._has_reset_rows

    def take(self) -> Shown:
        """Return what the policy is shown now, and forget which envs have begun episodes."""
        shown, self._starts = Shown(self._starts, self._infos), np.zeros_like(self._starts)
        return shown


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
        return tuple(parts) if isinstance(state, tuple) else parts
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

    space: Space
    step: int
    num_steps: int
    observations: list[np.ndarray]
    infos: dict[str, np.ndarray]
    starts: np.ndarray

    def of(self, row: int, envs: range) -> tuple[Tree, Shown]:
        """Return what some envs have shown in a row."""
        place = slice(envs.start, envs.stop)
        infos = {name: array[row, place] for name, array in self.infos.items()}
        arrays = [array[row, place] for array in self.observations]
        return tree_of(self.space, arrays), Shown(self.starts[place] >= self.step + row, infos)

    def remind(self, policy: Callable[[Tree, range, int, Shown], object], envs: range) -> tuple[Tree, Shown]:
        """Ask a policy for the steps that were taken, whose actions are known; return what the last row shows."""
        for row in range(len(self.observations[0])):
            observations, shown = self.of(row, envs)
            if self.step + row < self.num_steps:
                policy(observations, envs, self.step + row, shown)
        return observations, shown
