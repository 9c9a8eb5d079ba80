"""Policies that are asked for blocks of envs, so that what they give an env does not depend on who asks.

The result of a float32 network for a row depends on the number of rows, in the last bits: a matrix product takes other
paths for other sizes.  So a model is always called with as many rows, and an env is always in the same place of them:
block b has the envs from b * B on.  Rows of envs that are not asked for are zero, and their actions are dropped.
"""

from collections.abc import Mapping
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


@dataclass(frozen=True)
class _Range:
    """Some envs, and the blocks that they are in."""

    envs: range
    padded: range

    @property
    def places(self) -> slice:
        start = self.envs.start - self.padded.start
        return slice(start, start + len(self.envs))


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
        self._uniforms: dict[range, Uniforms] = {}
        self._buffers: dict[tuple[range, int], np.ndarray] = {}

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
        asked = _Range(envs, self._padded(envs))
        filled = self._filled(observations, asked)
        indices, uniforms = np.arange(asked.padded.start, asked.padded.stop), self._drawn(asked.padded, step)
        size = self._block or len(envs)
        parts = []
        for start in range(0, len(asked.padded), size):
            rows = slice(start, start + size)
            given = tree_of(self._observation_space, [array[rows] for array in filled])
            parts.append(self._read(self._model.act(given, indices[rows], uniforms[rows]), size))
        columns = [np.concatenate(arrays)[asked.places] for arrays in zip(*parts, strict=True)]
        num_actions = len(self._action_leaves)
        return Acted(tree_of(self._action_space, columns[:num_actions]), columns[num_actions:])

    def seed(self, seed: int) -> None:
        """Have the model draw from this seed from now on."""
        self._key = model_key(seed)
        self._uniforms.clear()

    def _padded(self, envs: range) -> range:
        size = self._block
        return range(envs.start // size * size, -(-envs.stop // size) * size) if size else envs

    def _filled(self, observations: Tree, asked: _Range) -> list[np.ndarray]:
        """Return an array of whole blocks for each leaf of the observations.

        A model may write to it: it shares no memory with what is stored.
        """
        filled = []
        for number, leaf in enumerate(self._observation_leaves):
            buffer = self._buffers.get((asked.envs, number))
            if buffer is None:
                shape = (len(asked.padded), *leaf.shape)
                buffer = self._buffers[asked.envs, number] = np.zeros(shape, leaf.dtype)
            buffer[asked.places] = leaf.of(observations)
            filled.append(buffer)
        return filled

    def _drawn(self, padded: range, step: int) -> np.ndarray:
        if not self._model.num_uniforms:
            return np.zeros((len(padded), 0))
        if padded not in self._uniforms:
            self._uniforms[padded] = Uniforms(self._key, padded, self._model.num_uniforms)
        self._uniforms[padded].forget(step)
        return self._uniforms[padded].at(step)

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


def _column(name: str, leaf: Leaf, given: Any, size: int) -> np.ndarray:
    try:
        array = np.asarray(leaf.of(given))
    except (TypeError, ValueError, LookupError) as error:
        raise ActionError(f"the policy's {name} cannot be read: {words_of(error)}") from error
    if array.ndim == 0 or len(array) != size:
        raise ActionError(
            f"the policy must give {name} of {size} envs, as many as it got observations of, got an array of shape "
            f"{array.shape}"
        )
    return array
