"""Random actions, which depend on the seed, the env and the step, and not on ranks."""

from itertools import count

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.partition import shifted
from mpi_rollout.core.seeding import WordsOfEnvs, policy_key
from mpi_rollout.core.spaces import Leaf, Space, Tree, bounds_of, leaf_spaces, leaves, mask_sizes, tree_of
from mpi_rollout.policies.sampling import BLOCK_STEPS, Uniforms, draw_block


class RandomPolicy:
    """Actions drawn at random, distributed as by Gymnasium's `Space.sample`.

    The action of env i in step t depends on (seed, i, t) and on the env's mask if it has one.  It does not depend on
    the number of envs, on ranks, or on observations.

    Parameters
    ----------
    envs
        The indices of the envs, or how many there are.
    first_env
        The index of env 0 in a larger run; draws are by the index there.

    Attributes
    ----------
    are_bits_narrow
        Actions of `Discrete(2)` are uint8: an eighth of the memory, which counts beside natively vectorized CartPoles.
    """

    def __init__(self, space: Space, envs: int | range, seed: int, first_env: int = 0):
        self._space, self._envs = space, range(envs) if isinstance(envs, int) else envs
        self._drawn_envs = shifted(self._envs, first_env)
        self._leaves = list(zip(leaves(space), leaf_spaces(space), strict=True))
        self._key, self._mask_key = policy_key(seed), policy_key(seed, is_by_masks=True)
        self._drawn: dict[int, list[np.ndarray]] = {}
        self._words: dict[int, WordsOfEnvs] = {}
        self.are_bits_narrow = False
        self._uniforms: Uniforms | None = None  # They choose among the actions that masks allow.
        self._steps = count()

    def __call__(self, _observations: Tree = None) -> Tree:
        """Return the actions of the next step."""
        step = next(self._steps)
        self.forget(step)
        return self.at(step)

    def at(self, step: int) -> Tree:
        """Return the actions of all envs in a step; steps may be asked for in any order."""
        return tree_of(self._space, [array[0] for array in self.rows(step, 1, self._envs)])

    def rows(self, step: int, num_steps: int, envs: range) -> list[np.ndarray]:
        """Return the actions of some envs in the steps from `step` on: for each leaf an array (num_steps, envs, ...).

        These may be views of what is kept, which must not be written to.
        """
        first, last = step // BLOCK_STEPS, (step + num_steps - 1) // BLOCK_STEPS
        for block in range(first, last + 1):
            if block not in self._drawn:
                self._drawn[block] = [self._draw(index, *leaf, block) for index, leaf in enumerate(self._leaves)]
        start = step - first * BLOCK_STEPS
        place = slice(start, start + num_steps), slice(envs.start - self._envs.start, envs.stop - self._envs.start)
        if first == last:
            return [array[place] for array in self._drawn[first]]
        blocks = [self._drawn[block] for block in range(first, last + 1)]
        return [np.concatenate(arrays)[place] for arrays in zip(*blocks, strict=True)]

    def by_masks(self, step: int, env_indices: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Return actions of some envs in a step that their masks allow, all equally likely.

        As with Gymnasium's `sample(mask=...)`, it is the first action where nothing is allowed.  The masks are
        `packed`, eight bits to a byte.
        """
        counts, (low, _) = mask_sizes(self._space), bounds_of(self._space)
        if self._uniforms is None:
            self._uniforms = Uniforms(self._mask_key, self._drawn_envs, len(counts))
        uniform = self._uniforms.at(step)[env_indices - self._envs.start]
        bits = np.unpackbits(packed, axis=1, count=sum(counts)).astype(np.bool_)
        parts = np.split(bits, np.cumsum(counts)[:-1], axis=1)
        chosen = [low.flat[index] + _choose(part, uniform[:, index]) for index, part in enumerate(parts)]
        return np.stack(chosen, axis=1).reshape(len(packed), *low.shape).astype(low.dtype)

    def forget(self, step: int) -> None:
        """Drop the draws that only steps before this one need."""
        for block in [block for block in self._drawn if block < step // BLOCK_STEPS]:
            del self._drawn[block]
        if self._uniforms is not None:
            self._uniforms.forget(step)

    def _draw(self, index: int, leaf: Leaf, space: Space, block: int) -> np.ndarray:
        """Return actions of shape (BLOCK_STEPS, num_envs, ...) for one leaf."""
        if isinstance(space, spaces.Discrete) and space.n == 2:
            bits = self._bits(index, block)
            if self.are_bits_narrow and not space.start:
                return bits
            return np.add(bits, space.start, dtype=leaf.dtype)
        drawn = draw_block(
            self._key,
            index,
            block,
            self._drawn_envs,
            lambda draws, num_envs: sample(space, draws, (num_envs, BLOCK_STEPS)),
        )
        return np.ascontiguousarray(drawn.swapaxes(0, 1), dtype=leaf.dtype)

    def _bits(self, index: int, block: int) -> np.ndarray:
        """Return 0 or 1 for each step and env, uint8: of an env's word, bit t is for step t of the block."""
        if index not in self._words:
            self._words[index] = WordsOfEnvs(self._key, index, self._drawn_envs)
        words = self._words[index](block).astype("<u8", copy=False)
        # C-contiguous, or the bits come in another order and are copied for `reshape`.
        octets = np.ascontiguousarray(words.view(np.uint8).reshape(-1, BLOCK_STEPS // 8).T)
        bits = np.right_shift(octets[:, np.newaxis], np.arange(8, dtype=np.uint8)[:, np.newaxis])
        bits &= np.uint8(1)
        return bits.reshape(BLOCK_STEPS, -1)


def _choose(allowed: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Choose in each row of bools a place with a True, all equally likely; 0 where there is none."""
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
