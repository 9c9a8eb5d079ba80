"""Policies that are asked for blocks of envs, so that what they give an env does not depend on who asks.

The result of a float32 network for a row depends on the number of rows, in the last bits: a matrix product takes other
paths for other sizes.  So a model is always called with as many rows, and an env is always in the same place of them:
block b has the envs from b * B on.  Rows of envs that are not asked for are zero, and their actions are dropped.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.core.seeding import model_key
from mpi_rollout.core.spaces import Leaf, Space, Tree, is_castable, leaves, tree_of
from mpi_rollout.errors import ActionError, words_of
from mpi_rollout.policies.model import Model
from mpi_rollout.policies.uniforms import Uniforms


@dataclass(frozen=True)
class PolicyOptions:
    """How a model is asked.

    Parameters
    ----------
    block
        The number of envs of a block; 0 asks for all envs at once, and their actions may then depend in the last bits
        on which envs these are.
    seed
        Of the numbers that the model draws from.
    """

    block: int = 64
    seed: int = 0


class Acted(NamedTuple):
    """What a policy gave for some envs.

    Parameters
    ----------
    actions
        Arrays (num_envs, ...), as the space nests them.
    extras
        An array (num_envs, ...) for each of the model's extras.
    """

    actions: Tree
    extras: list[np.ndarray]


class BlockPolicy:
    """A model, asked block by block.

    Parameters
    ----------
    observation_space, action_space
        Of a single env.
    """

    def __init__(self, model: Model, observation_space: Space, action_space: Space, options: PolicyOptions) -> None:
        self._model, self._block = model, options.block
        self._observation_space, self._action_space = observation_space, action_space
        self._observation_leaves, self._action_leaves = leaves(observation_space), leaves(action_space)
        self._key = model_key(options.seed)
        self._asked: dict[range, _Asked] = {}

    def __call__(self, observations: Tree, envs: range, step: int) -> Acted:
        """Return what the policy gives for some neighbouring envs in a step.

        Parameters
        ----------
        observations
            (num_envs, ...), or a tree of such arrays.
        step
            Of the run: random numbers depend on it.

        Raises
        ------
        ActionError
            The model gave actions of another number of envs.
        """
        asked = self._asked.get(envs)
        if asked is None:
            asked = self._asked[envs] = self._prepared(envs)
        for array, leaf in zip(asked.shown, self._observation_leaves, strict=True):
            array[...] = leaf.of(observations)
        for array in asked.padding:  # The model may have written there.
            array.fill(0)
        parts = [
            self._read(self._model.act(given, indices, uniforms), len(indices))
            for given, indices, uniforms in asked.calls(step)
        ]
        columns = parts[0] if len(parts) == 1 else [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
        columns = [column[asked.places] for column in columns]
        num_actions = len(self._action_leaves)
        return Acted(tree_of(self._action_space, columns[:num_actions]), columns[num_actions:])

    def seed(self, seed: int) -> None:
        """Have the model draw from this seed from now on."""
        self._key = model_key(seed)
        self._asked.clear()

    def _prepared(self, envs: range) -> "_Asked":
        size = self._block or len(envs)
        first = envs.start // size * size if self._block else envs.start
        padded = range(first, first + -(-(envs.stop - first) // size) * size)
        uniforms = Uniforms(self._key, padded, self._model.num_uniforms) if self._model.num_uniforms else None
        buffers = [np.zeros((len(padded), *leaf.shape), leaf.dtype) for leaf in self._observation_leaves]
        return _Asked(envs, padded, size, self._observation_space, buffers, uniforms)

    def _read(self, given: Any, size: int) -> list[np.ndarray]:
        """Return an array (size, ...) for each leaf of the actions, and one for each extra."""
        extras = self._model.extras
        if not extras:
            return [_column("actions", leaf, given, size) for leaf in self._action_leaves]
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], Mapping):
            names = ", ".join(leaf.path for leaf in extras)
            raise ActionError(f"the policy must give actions and a dict of {names}, got {type(given).__name__}")
        columns = [_column("actions", leaf, given[0], size) for leaf in self._action_leaves]
        for leaf in extras:
            column = _column(f"extra {leaf.path!r}", leaf, given[1], size)
            if column.shape[1:] != leaf.shape or not is_castable(column.dtype, leaf.dtype):
                raise ActionError(
                    f"the policy's extra {leaf.path!r} must be {leaf.dtype} of shape {(size, *leaf.shape)}, got "
                    f"{column.dtype} of shape {column.shape}"
                )
            columns.append(column.astype(leaf.dtype, copy=False))
        return columns


class _Asked:
    """Some neighbouring envs, and the calls in which a model is asked for them.

    Parameters
    ----------
    padded
        All envs of the blocks that these envs are in.
    buffers
        Observations of whole blocks, for each leaf.  The model may write to them: they are not what is stored.

    Attributes
    ----------
    shown
        The rows of the buffers that these envs have.
    padding
        The others, in pieces.
    places
        Where these are.
    """

    def __init__(
        self,
        envs: range,
        padded: range,
        size: int,
        space: Space,
        buffers: list[np.ndarray],
        uniforms: Uniforms | None,
    ) -> None:
        self._uniforms, self._none = uniforms, np.zeros((size, 0))
        self.places = slice(envs.start - padded.start, envs.stop - padded.start)
        self.shown = [buffer[self.places] for buffer in buffers]
        others = slice(0, self.places.start), slice(self.places.stop, len(padded))
        self.padding = [buffer[rows] for buffer in buffers for rows in others if rows.start < rows.stop]
        self._blocks = [
            (slice(start, start + size), tree_of(space, [buffer[start : start + size] for buffer in buffers]))
            for start in range(0, len(padded), size)
        ]
        self._indices = np.arange(padded.start, padded.stop)

    def calls(self, step: int) -> Iterator[tuple[Tree, np.ndarray, np.ndarray]]:
        """Yield the arguments of `Model.act` for each block."""
        uniforms = None
        if self._uniforms is not None:
            self._uniforms.forget(step)
            uniforms = self._uniforms.at(step)
        for rows, given in self._blocks:
            yield given, self._indices[rows], self._none if uniforms is None else uniforms[rows]


def _column(name: str, leaf: Leaf, given: Any, size: int) -> np.ndarray:
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
