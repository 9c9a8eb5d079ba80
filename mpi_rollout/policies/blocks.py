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
from gymnasium import spaces

from mpi_rollout.core.seeding import model_key
from mpi_rollout.core.spaces import Leaf, Space, Tree, is_castable, leaves, tree_of
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.memory import INFOS, STARTS, STATE, Shown, kept
from mpi_rollout.policies.model import Model
from mpi_rollout.policies.sampling import Uniforms
from mpi_rollout.text import words_of


class Acted(NamedTuple):
    """What a policy gave for some envs: actions (num_envs, ...), as the space nests them, and its extras."""

    actions: Tree
    extras: list[np.ndarray]


class _Room(NamedTuple):
    """What a model gets when it is asked for some neighbouring envs: arrays of all envs of their blocks."""

    rows: slice  # Of the envs that are asked for.
    shown: list[np.ndarray]  # Their rows of the observations, for each leaf.
    padding: list[np.ndarray]  # All other rows.
    blocks: list[tuple[slice, Tree, np.ndarray]]  # Of each block the rows, the observations and the env indices.
    uniforms: Uniforms
    no_uniforms: np.ndarray
    num_padded: int  # All rows.


class BlockPolicy:
    """A model, asked block by block, for envs of which each has these spaces.

    Parameters
    ----------
    block
        The number of envs of a block; 0 asks for all envs at once, and their actions may then depend in the last bits
        on which envs these are.
    seed
        Of the numbers that the model draws from.
    """

    def __init__(
        self, model: Model, observation_space: Space, action_space: Space, block: int = 64, seed: int = 0
    ) -> None:
        self._model, self._block = model, block
        self._observation_space, self._action_space = observation_space, action_space
        self._observation_leaves, self._action_leaves = leaves(observation_space), leaves(action_space)
        self.takes = model.takes
        self._states: dict[range, list[Any]] = {}  # A state for each block, after its last call.
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Let the model draw from this seed from now on."""
        self._key = model_key(seed)
        self._rooms: dict[range, _Room] = {}

    def __call__(self, observations: Tree, envs: range, step: int, shown: Shown | None = None) -> Acted:
        """Ask the policy for some neighbouring envs in a step of the run; if it `takes` more, `shown` has it.

        Raises
        ------
        ActionError
            The model gave actions, or a state, of another number of envs.
        """
        room = self._rooms.get(envs)
        if room is None:
            room = self._rooms[envs] = self._room_for(envs)
        for array, leaf in zip(room.shown, self._observation_leaves, strict=True):
            array[...] = leaf.of(observations)
        for array in room.padding:  # The model may have written there.
            array.fill(0)
        uniforms = room.no_uniforms
        if self._model.num_uniforms:
            room.uniforms.forget(step)
            uniforms = room.uniforms.at(step)
        if shown is not None and self.takes:
            parts = self._ask_more(room, uniforms, shown, self._states.setdefault(envs, [None] * len(room.blocks)))
        else:
            parts = [
                self._read(self._model.act(given, indices, uniforms[block]), len(indices))
                for block, given, indices in room.blocks
            ]
        columns = parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        columns = [column[room.rows] for column in columns]
        num_actions = len(self._action_leaves)
        return Acted(tree_of(self._action_space, columns[:num_actions]), columns[num_actions:])

    def _ask_more(self, room: _Room, uniforms: np.ndarray, shown: Shown, states: list[Any]) -> list[list[np.ndarray]]:
        """Ask a model that takes more than observations; keep its new states."""
        starts = np.ones(room.num_padded, np.bool_)
        starts[room.rows] = shown.episode_starts
        infos = {name: np.zeros((len(starts), *array.shape[1:]), array.dtype) for name, array in shown.infos.items()}
        for name, array in shown.infos.items():
            infos[name][room.rows] = array
        parts = []
        for number, (block, given, indices) in enumerate(room.blocks):
            others = {STATE: states[number], STARTS: starts[block]}
            others[INFOS] = {name: array[block] for name, array in infos.items()}
            others = {name: value for name, value in others.items() if name in self.takes}
            returned = self._model.act(given, indices, uniforms[block], **others)
            if STATE in self.takes:
                returned, state = self._without_state(returned)
                states[number] = kept(state, len(indices))
            parts.append(self._read(returned, len(indices)))
        return parts

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

    def _room_for(self, envs: range) -> _Room:
        size = self._block or len(envs)
        first = envs.start // size * size if self._block else envs.start
        padded = range(first, first + -(-(envs.stop - first) // size) * size)
        rows = slice(envs.start - first, envs.stop - first)
        buffers = [np.zeros((len(padded), *leaf.shape), leaf.dtype) for leaf in self._observation_leaves]
        blocks = []
        for block in (slice(start, start + size) for start in range(0, len(padded), size)):
            given = tree_of(self._observation_space, [buffer[block] for buffer in buffers])
            blocks.append((block, given, np.arange(first + block.start, first + block.stop)))
        shown = [buffer[rows] for buffer in buffers]
        padding = [part for buffer in buffers for part in (buffer[: rows.start], buffer[rows.stop :]) if len(part)]
        uniforms = Uniforms(self._key, padded, self._model.num_uniforms)
        return _Room(rows, shown, padding, blocks, uniforms, np.zeros((len(padded), 0)), len(padded))

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


def check_actions_alone(given: Tree, space: Space, size: int) -> None:
    """Raise ActionError for a tuple of actions and something else, such as SB3's `predict` returns."""
    is_tuple = isinstance(given, tuple) and not isinstance(space, spaces.Tuple)
    if is_tuple and (len(given) != size or any(entry is None for entry in given)):
        raise ActionError(
            f"the policy must return actions alone, returns a tuple of {len(given)}; return its first entry, as in "
            "model.predict(observations)[0]"
        )


def _column(name: str, leaf: Leaf, given: Tree, size: int) -> np.ndarray:
    try:
        array = np.array(leaf.of(given))  # A copy: the model may give the same memory with the next block.
    except (TypeError, ValueError, LookupError) as error:
        raise ActionError(f"the policy's {name} cannot be read: {words_of(error)}") from error
    if array.ndim == 0 or len(array) != size:
        raise ActionError(
            f"the policy must give {name} of {size} envs, as many as it got observations of, got an array of shape "
            f"{array.shape}"
        )
    return array
