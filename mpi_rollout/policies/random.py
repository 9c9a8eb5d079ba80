"""Policies: callables from batched observations to batched actions.

A policy gets arrays of shape (num_envs, ...) that are its own: it may keep them, and write into them.
`torch.from_numpy` takes them without a copy.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.layout import Leaf, bounds, leaf_spaces, leaves, tree_of
from mpi_rollout.core.masks import allowed, sizes
from mpi_rollout.core.seeding import draws_by_masks, draws_of_policy

Policy = Callable[[Any], Any]
BLOCK_STEPS = 64  # Drawn at once: making a generator costs 20 us, as much as stepping three CartPoles.


class RandomPolicy:
    """Actions drawn at random, distributed as by Gymnasium's `Space.sample`.

    The action of env i in step t depends on (seed, i, t), on the env's mask if it has one, and on nothing else: not on
    how many envs there are, not on ranks, not on observations.
    """

    def __init__(self, space: spaces.Space, num_envs: int, seed: int, first_step: int = 0):
        self._space, self._num_envs, self._seed = space, num_envs, seed
        self._leaves = list(zip(leaves(space), leaf_spaces(space), strict=True))
        self._drawn: dict[int, list[Any]] = {}
        self._uniform: dict[int, np.ndarray] = {}
        self._steps = count(first_step)

    def __call__(self, _observations: Any = None) -> Any:
        """Return the actions of the next step."""
        step = next(self._steps)
        if step % BLOCK_STEPS == 0:
            self.forget(step)
        return self.at(step)

    def at(self, step: int) -> Any:
        """Return the actions of all envs in a step; steps may be asked for in any order."""
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._drawn:
            self._drawn[block] = self._draw_block(block)
        return self._drawn[block][row]

    def by_masks(self, step: int, envs: slice, has_mask: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Return the actions of some envs in a step: of those that have a mask one that it allows, all alike likely.

        As with Gymnasium's `sample(mask=...)`, where nothing is allowed it is the first action.

        Parameters
        ----------
        has_mask, packed
            Of these envs, see `masks.mask_leaves`.
        """
        actions = np.array(self.at(step)[envs])
        components = actions.reshape(len(actions), -1)
        counts, (low, _) = sizes(self._space), bounds(self._space)
        rows = np.flatnonzero(has_mask)
        uniform = self._uniform_of(step, len(counts))[envs][rows]
        bits = np.unpackbits(packed[rows], axis=1, count=sum(counts)).astype(np.bool_)
        for index, part in enumerate(np.split(bits, np.cumsum(counts)[:-1], axis=1)):
            components[rows, index] = low.flat[index] + allowed(part, uniform[:, index])
        return actions

    def _uniform_of(self, step: int, num_components: int) -> np.ndarray:
        """Random numbers of shape (num_envs, num_components)."""
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._uniform:
            shape = (self._num_envs, BLOCK_STEPS, num_components)
            self._uniform[block] = draws_by_masks(self._seed, block).random(shape)
        return self._uniform[block][:, row]

    def forget(self, step: int) -> None:
        """Keep no more what only steps before this one need."""
        for kept in (self._drawn, self._uniform):
            for block in [block for block in kept if block < step // BLOCK_STEPS]:
                del kept[block]

    def _draw_block(self, block: int) -> list[Any]:
        arrays = [self._draw(index, *leaf, block) for index, leaf in enumerate(self._leaves)]
        return [tree_of(self._space, rows) for rows in zip(*arrays, strict=True)]

    def _draw(self, index: int, leaf: Leaf, space: spaces.Space, block: int) -> np.ndarray:
        """Actions of shape (BLOCK_STEPS, num_envs, ...) for one leaf."""
        draws = draws_of_policy(self._seed, index, block)
        if isinstance(space, spaces.Discrete) and space.n == 2:
            # A random bit each: a tenth of the time, which counts beside a natively vectorized CartPole.
            random = np.frombuffer(draws.bytes(self._num_envs * BLOCK_STEPS // 8), np.uint8)
            bits = np.unpackbits(random.reshape(self._num_envs, -1), axis=1)
            return bits.T.astype(np.int64) + space.start
        actions = sample(space, draws, (self._num_envs, BLOCK_STEPS)).swapaxes(0, 1)
        return np.ascontiguousarray(actions, dtype=leaf.dtype)


def sample(space: spaces.Space, draws: np.random.Generator, lead: tuple[int, ...]) -> np.ndarray:
    """Draw samples of shape (*lead, *space.shape) of a leaf space, distributed as Gymnasium documents `sample`.

    Whole numbers are uniform; a Box component is uniform where bounded on both sides, exponential from the bound
    where on one, normal where on none.  Draws are made in C order: more of them do not change the first ones.
    """
    low, high = bounds(space)
    if isinstance(space, spaces.Discrete | spaces.MultiBinary):
        count = int((high - low).flat[0]) + 1
        dtype = np.uint8 if count <= 256 else np.int64  # Four draws from one random word, where 64 bits take it all.
        return draws.integers(count, size=(*lead, *space.shape), dtype=dtype).astype(space.dtype) + low
    below, above = True, True
    if isinstance(space, spaces.Box):  # An unbounded component of whole numbers has bounds, those of its dtype.
        below, above = space.bounded_below, space.bounded_above
    return _sample_components(space, draws, lead, np.asarray(below & above), np.asarray(below), np.asarray(above))


def _sample_components(
    space: spaces.Space,
    draws: np.random.Generator,
    lead: tuple[int, ...],
    both: np.ndarray,
    below: np.ndarray,
    above: np.ndarray,
) -> np.ndarray:
    """Draw components that are bounded on `both` sides, `below`, `above`, or not at all."""
    is_whole = np.dtype(space.dtype).kind in "iub"
    low, high = (bound.astype(np.float64) for bound in bounds(space))
    # Two uniforms each if one is needed for a normal (Box and Muller): all components must take equally many.
    uniform = draws.random((*lead, *low.shape, 1 if both.all() else 2))
    first, second = uniform[..., 0], uniform[..., -1]
    end = high + is_whole
    start, stop = np.where(both, low, 0.0), np.where(both, end, 0.0)
    samples = start * (1.0 - first) + stop * first  # Not low + (high - low) * first: that can overflow.
    if not both.all():
        exponential = -np.log1p(-first)
        normal = np.sqrt(2.0 * exponential) * np.cos(2.0 * np.pi * second)
        one_sided = np.where(below, low + exponential, end - exponential)
        samples = np.where(both, samples, np.where(below | above, one_sided, normal))
    if is_whole:
        samples = np.floor(samples)
        high = np.where(high < 2.0**53, high, np.nextafter(high, 0.0))  # The float of 2**63 - 1 is 2**63.
    return np.clip(samples, low, high)
