"""Policies that are asked for blocks of envs, so that what they give an env does not depend on who asks.

The result of a float32 network for a row depends on the number of rows, in the last bits: a matrix product takes other
paths for other sizes.  So a model is always called with as many rows, and an env is always in the same place of them:
block b has the envs from b * B on.  Rows of envs that are not asked for are zero, and their actions are dropped.

The state of a policy that remembers is kept here, block by block, for the same neighbouring envs; in other rows of
their blocks an episode begins in each step, so that nothing grows there.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.core.partition import shifted
from mpi_rollout.core.seeding import model_key
from mpi_rollout.core.spaces import Leaf, Space, Tree, is_castable, leaves, tree_of
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.action_check import check_actions_alone, described
from mpi_rollout.policies.memory import INFOS, STARTS, STATE, PastRows, PolicyView, kept
from mpi_rollout.policies.model import Model
from mpi_rollout.policies.sampling import Uniforms
from mpi_rollout.text import words_of


class Acted(NamedTuple):
    """What a policy gave for some envs: actions (num_envs, ...), as the space nests them, and its extras."""

    actions: Tree
    extras: list[np.ndarray]


class BlockPolicy:
    """A model, asked block by block for some neighbouring envs, of which each has these spaces.

    Parameters
    ----------
    block
        The number of envs of a block; 0 asks for all of these envs at once, and their actions may then depend in the
        last bits on which envs these are.
    seed
        Of the numbers that the model draws from.
    has_reset_rows
        A row that only resets follows the end of each episode.
    first_env
        The index of env 0 in a larger run: blocks, draws and what the model is told are by the index there.

    Attributes
    ----------
    view
        What the envs show besides observations, for a model that `takes` it.
    """

    def __init__(
        self,
        model: Model,
        observation_space: Space,
        action_space: Space,
        envs: range,
        block: int = 64,
        seed: int = 0,
        has_reset_rows: bool = True,
        first_env: int = 0,
    ) -> None:
        self._model, self.takes, self.envs = model, model.takes, envs
        self._observation_space, self._action_space = observation_space, action_space
        self._observation_leaves, self._action_leaves = leaves(observation_space), leaves(action_space)
        size, envs = block or len(envs), shifted(envs, first_env)
        first = envs.start // block * block if block else envs.start
        self._padded = range(first, first + -(-(envs.stop - first) // size) * size)
        self._rows = slice(envs.start - first, envs.stop - first)
        self._given = [np.zeros((len(self._padded), *leaf.shape), leaf.dtype) for leaf in self._observation_leaves]
        self._blocks = []  # Of each the rows, the observations and the env indices.
        for rows in (slice(start, start + size) for start in range(0, len(self._padded), size)):
            given = tree_of(observation_space, [array[rows] for array in self._given])
            self._blocks.append((rows, given, np.arange(first + rows.start, first + rows.stop)))
        self._states: list[Any] = [None] * len(self._blocks)  # What the model returned last.
        self.view = PolicyView(len(envs), has_reset_rows)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Let the model draw from this seed from now on."""
        self._uniforms = Uniforms(model_key(seed), self._padded, self._model.num_uniforms)

    def __call__(self, observations: Tree, step: int) -> Acted:
        """Ask the policy for its envs in a step of the run; ActionError if it gives those of another number of envs."""
        for array, leaf in zip(self._given, self._observation_leaves, strict=True):
            array[: self._rows.start], array[self._rows.stop :] = 0, 0  # The model may have written there.
            array[self._rows] = leaf.of(observations)
        self._uniforms.forget(step)
        uniforms, parts = self._uniforms.at(step), []
        more = self._more() if self.takes else [{}] * len(self._blocks)
        for number, (rows, given, indices) in enumerate(self._blocks):
            returned = self._model.act(given, indices, uniforms[rows], **more[number])
            if STATE in self.takes:
                returned, state = self._without_state(returned)
                self._states[number] = kept(state, len(indices))
            parts.append(self._read(returned, len(indices)))
        columns = parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        columns = [column[self._rows] for column in columns]
        num_actions = len(self._action_leaves)
        return Acted(tree_of(self._action_space, columns[:num_actions]), columns[num_actions:])

    def _more(self) -> list[dict[str, Any]]:
        """Return what the model takes besides observations, for each block."""
        starts, infos = np.ones(len(self._padded), np.bool_), dict[str, np.ndarray]()
        starts[self._rows] = self.view.take_starts()
        for name, array in self.view.infos.items():
            infos[name] = np.zeros((len(starts), *array.shape[1:]), array.dtype)
            infos[name][self._rows] = array
        more = []
        for (rows, *_), state in zip(self._blocks, self._states, strict=True):
            all_names = {STATE: state, STARTS: starts[rows], INFOS: {name: infos[name][rows] for name in infos}}
            more.append({name: value for name, value in all_names.items() if name in self.takes})
        return more

    def remind(self, past: PastRows) -> Tree:
        """Ask the policy for the steps that were taken, whose actions are known; return what the last row shows."""
        envs = slice(self.envs.start, self.envs.stop)
        for row in range(len(past.observations[0])):
            observations = tree_of(self._observation_space, [array[row, envs] for array in past.observations])
            infos = {name: array[row, envs] for name, array in past.infos.items()}
            self.view.resume(past.starts[envs], past.step + row, infos)
            if past.step + row < past.num_steps:
                self(observations, past.step + row)
        return observations

    def _without_state(self, returned: object) -> tuple[Tree, object]:
        """Take what a model returned apart: actions, maybe with extras, and its new state."""
        wanted = ("actions", "extras", STATE) if self._model.extras else ("actions", STATE)
        if not isinstance(returned, tuple) or len(returned) != len(wanted):
            raise ActionError(
                f"the policy takes {STATE}, and must return {', '.join(wanted)} as a tuple of {len(wanted)}, got "
                + (f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__)
            )
        *others, state = returned
        return (others[0] if len(others) == 1 else tuple(others)), state

    def _read(self, given: Tree, size: int) -> list[np.ndarray]:
        """Return an array (size, ...) for each leaf of the actions, and one for each extra."""
        extras = self._model.extras
        if not extras:
            check_actions_alone(given, self._action_space, size)
            return [_column("actions", leaf, given, size) for leaf in self._action_leaves]
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], Mapping):
            names = ", ".join(leaf.path for leaf in extras)
            raise ActionError(f"the policy must give actions and a dict of {names}, got {type(given).__name__}")
        actions = [_column("actions", leaf, given[0], size) for leaf in self._action_leaves]
        return actions + [_extra(leaf, given[1], size) for leaf in extras]


def _extra(leaf: Leaf, given: Tree, size: int) -> np.ndarray:
    column = _column(f"extra {leaf.path!r}", leaf, given, size)
    if column.shape[1:] != leaf.shape or not is_castable(column.dtype, leaf.dtype):
        raise ActionError(
            f"the policy's extra {leaf.path!r} must be {leaf.dtype} of shape {(size, *leaf.shape)}, got "
            f"{column.dtype} of shape {column.shape}"
        )
    return column.astype(leaf.dtype, copy=False)


def _column(name: str, leaf: Leaf, given: Tree, size: int) -> np.ndarray:
    try:
        array = np.array(leaf.of(given))  # A copy: the model may give the same memory with the next block.
    except (TypeError, ValueError, LookupError) as error:
        raise ActionError(f"the policy's {name} cannot be read: {words_of(error)}") from error
    if array.ndim == 0 or len(array) != size:
        got = described(array) if array.dtype == object and not array.ndim else f"an array of shape {array.shape}"
        raise ActionError(f"the policy must give {name} of {size} envs, as many as it got observations of, got {got}")
    return array
