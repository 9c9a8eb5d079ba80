"""Policies: callables from batched observations to batched actions.

Observations come as views of shape (num_envs, ...) that are valid until the policy is called again but one time
more; `torch.from_numpy` takes them without a copy.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.config import load_callable
from mpi_rollout.layout import Leaf, bounds, leaf_spaces, leaves, tree_of
from mpi_rollout.seeding import draws_of_policy

Policy = Callable[[Any], Any]
BLOCK_STEPS = 64  # Drawn at once: making a generator costs 20 us, as much as stepping three CartPoles.


class RandomPolicy:
    """Actions drawn at random, distributed as by Gymnasium's `Space.sample`.

    The action of env i in step t depends on (seed, i, t) and on nothing else: not on how many envs there are, not
    on ranks, not on observations.
    """

    def __init__(self, space: spaces.Space, num_envs: int, seed: int, first_step: int = 0):
        self._space, self._num_envs, self._seed = space, num_envs, seed
        self._leaves = list(zip(leaves(space), leaf_spaces(space), strict=True))
        self._rows = self._draw_rows(first_step)

    def __call__(self, _observations: Any = None) -> Any:
        return next(self._rows)

    def _draw_rows(self, step: int) -> Iterator[Any]:
        first_block, row = divmod(step, BLOCK_STEPS)
        for block in count(first_block):
            arrays = [self._draw(index, *leaf, block) for index, leaf in enumerate(self._leaves)]
            trees = [tree_of(self._space, rows) for rows in zip(*arrays, strict=True)]
            yield from trees[row:]
            row = 0

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
    if isinstance(space, spaces.Discrete | spaces.MultiBinary) and np.ptp(high - low) == 0:
        count = int((high - low).flat[0]) + 1
        dtype = (
            np.uint8 if count <= 256 else np.int64
        )  # Four draws from one random word; the 64-bit ones take one each.
        return draws.integers(count, size=(*lead, *space.shape), dtype=dtype).astype(space.dtype) + low
    if np.dtype(space.dtype).kind in "iub":
        low, high = low.astype(np.float64), high.astype(np.float64)
        uniform = draws.random((*lead, *space.shape))
        return np.clip(np.floor(low + uniform * (high - low + 1)), low, high)
    return _sample_box(low, high, draws, lead)


def _sample_box(low: np.ndarray, high: np.ndarray, draws: np.random.Generator, lead: tuple[int, ...]) -> np.ndarray:
    below, above = np.isfinite(low), np.isfinite(high)
    if (below & above).all():
        return np.clip(low + draws.random((*lead, *low.shape)) * (high - low), low, high)
    # Two uniforms each, since a normal takes two (Box and Muller) and all components must take equally many.
    first, second = np.moveaxis(draws.random((*lead, *low.shape, 2)), -1, 0)
    exponential = -np.log1p(-first)
    normal = np.sqrt(2.0 * exponential) * np.cos(2.0 * np.pi * second)
    low, high = np.where(below, low, 0.0), np.where(above, high, 0.0)
    one_sided = np.where(below, low + exponential, high - exponential)
    two_sided = np.clip(low + first * (high - low), low, high)
    return np.where(below & above, two_sided, np.where(below | above, one_sided, normal))


def load_policy(spec: str, space: spaces.Space, num_envs: int, seed: int) -> Policy:
    """Make the policy that `--policy` names.

    Raises
    ------
    UsageError
        It cannot be imported or is not callable.
    """
    if spec == "random":
        return RandomPolicy(space, num_envs, seed)
    return load_callable(spec, "--policy")
