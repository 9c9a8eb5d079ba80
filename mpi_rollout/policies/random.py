"""Random actions, which depend on the seed, the env and the step, and not on ranks."""

from collections.abc import Callable
from itertools import count

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.seeding import draws_by_masks, draws_of_policy
from mpi_rollout.core.spaces import Leaf, Space, Tree, bounds_of, leaf_spaces, leaves, mask_sizes, tree_of

Policy = Callable[[Tree], Tree]
BLOCK_STEPS = 64  # Steps drawn at once: a new generator costs 20 us, as much as stepping three CartPoles.


class RandomPolicy:
    """Actions drawn at random, distributed as by Gymnasium's `Space.sample`.

    The action of env i in step t depends on (seed, i, t) and on the env's mask if it has one.  It does not depend on
    the number of envs, on ranks, or on observations.
    """

    def __init__(self, space: Space, num_envs: int, seed: int, first_step: int = 0):
        self._space, self._num_envs, self._seed = space, num_envs, seed
        self._leaves = list(zip(leaves(space), leaf_spaces(space), strict=True))
        self._drawn: dict[int, list[Tree]] = {}
        self._uniform: dict[int, np.ndarray] = {}
        self._steps = count(first_step)

    def __call__(self, _observations: Tree = None) -> Tree:
        """Return the actions of the next step."""
        step = next(self._steps)
        if step % BLOCK_STEPS == 0:
            self.forget(step)
        return self.at(step)

    def at(self, step: int) -> Tree:
        """Return the actions of all envs in a step; steps may be asked for in any order."""
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._drawn:
            self._drawn[block] = self._draw_block(block)
        return self._drawn[block][row]

    def by_masks(self, step: int, envs: slice, has_mask: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Return the actions of some envs in a step; an env with a mask gets one that it allows, all equally likely.

        As with Gymnasium's `sample(mask=...)`, it is the first action where nothing is allowed.

        Parameters
        ----------
        has_mask, packed
            Which of these envs have masks, and the masks as bits; see `spaces.mask_leaves`.
        """
        actions = np.array(self.at(step)[envs])
        components = actions.reshape(len(actions), -1)
        counts, (low, _) = mask_sizes(self._space), bounds_of(self._space)
        rows = np.flatnonzero(has_mask)
        uniform = self._uniform_of(step, len(counts))[envs][rows]
        bits = np.unpackbits(packed[rows], axis=1, count=sum(counts)).astype(np.bool_)
        for index, allowed in enumerate(np.split(bits, np.cumsum(counts)[:-1], axis=1)):
            components[rows, index] = low.flat[index] + _choose(allowed, uniform[:, index])
        return actions

    def _uniform_of(self, step: int, num_components: int) -> np.ndarray:
        """Return random numbers of shape (num_envs, num_components)."""
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._uniform:
            shape = (self._num_envs, BLOCK_STEPS, num_components)
            self._uniform[block] = draws_by_masks(self._seed, block).random(shape)
        return self._uniform[block][:, row]

    def forget(self, step: int) -> None:
        """Drop the draws that only steps before this one need."""
        for draws in (self._drawn, self._uniform):
            for block in [block for block in draws if block < step // BLOCK_STEPS]:
                del draws[block]

    def _draw_block(self, block: int) -> list[Tree]:
        arrays = [self._draw(index, *leaf, block) for index, leaf in enumerate(self._leaves)]
        return [tree_of(self._space, rows) for rows in zip(*arrays, strict=True)]

    def _draw(self, index: int, leaf: Leaf, space: Space, block: int) -> np.ndarray:
        """Return actions of shape (BLOCK_STEPS, num_envs, ...) for one leaf."""
        draws = draws_of_policy(self._seed, index, block)
        if isinstance(space, spaces.Discrete) and space.n == 2:
            # One random bit for each: a tenth of the time, which counts beside a natively vectorized CartPole.
            packed = np.frombuffer(draws.bytes(self._num_envs * BLOCK_STEPS // 8), np.uint8)
            bits = np.unpackbits(packed.reshape(self._num_envs, -1), axis=1)
            return bits.T.astype(np.int64) + space.start
        actions = sample(space, draws, (self._num_envs, BLOCK_STEPS)).swapaxes(0, 1)
        return np.ascontiguousarray(actions, dtype=leaf.dtype)


def _choose(allowed: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Choose in each row one of the places with a True, all equally likely; 0 where there is none.

    Parameters
    ----------
    allowed
        Bools of shape (rows, actions).
    uniform
        A number from 0 to 1, 1 excluded, for each row.
    """
    number = np.count_nonzero(allowed, axis=1)
    pick = np.minimum((uniform * number).astype(np.int64), number - 1)
    return np.asarray(np.count_nonzero(np.cumsum(allowed, axis=1) <= pick[:, None], axis=1))


def sample(space: Space, draws: np.random.Generator, lead: tuple[int, ...]) -> np.ndarray:
    """Draw samples of shape (*lead, *space.shape) of a leaf space, distributed as Gymnasium documents `sample`.

    Whole numbers are uniform.  A Box component is uniform if it is bounded on both sides, exponential from the bound if
    on one side, normal if on none.  Draws are made in C order: more of them do not change the first ones.
    """
    low, high = bounds_of(space)
    if isinstance(space, spaces.Discrete | spaces.MultiBinary):
        count = int((high - low).flat[0]) + 1
        dtype = np.uint8 if count <= 256 else np.int64  # One random word gives four small draws, or one of 64 bits.
        return draws.integers(count, size=(*lead, *low.shape), dtype=dtype).astype(low.dtype) + low
    below = above = np.asarray(True)
    if isinstance(space, spaces.Box):  # An unbounded component of whole numbers has bounds, those of its dtype.
        below, above = space.bounded_below, space.bounded_above
    return _sample_components(space, draws, lead, below, above)


def _sample_components(
    space: Space, draws: np.random.Generator, lead: tuple[int, ...], below: np.ndarray, above: np.ndarray
) -> np.ndarray:
    """Draw components that are bounded `below`, `above`, on both sides, or not at all."""
    both, is_whole = below & above, np.dtype(space.dtype).kind in "iub"
    low, high = (bound.astype(np.float64) for bound in bounds_of(space))
    # Two uniforms each if any component needs a normal (Box and Muller): all must take equally many.
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
