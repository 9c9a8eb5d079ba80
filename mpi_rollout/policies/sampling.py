"""Random numbers by env and step, and draws from distributions made of them: the same whichever rank asks.

The uniforms are in [0, 1).  Everything is calculated in float64.
"""

from collections.abc import Callable, Sequence

import numpy as np

from mpi_rollout.core.seeding import draws_of_block

BLOCK_STEPS = BLOCK_ENVS = 64  # Drawn at once from one generator: to make another one costs 5 us.


def draw_block(
    key: np.ndarray, index: int, block: int, envs: range, draw: Callable[[np.random.Generator, int], np.ndarray]
) -> np.ndarray:
    """Return draws of shape (num_envs, ...) for a block of steps.  Each block of envs has one generator."""
    parts = [
        draw(draws_of_block(key, index, block, place), min(BLOCK_ENVS, envs.stop - place * BLOCK_ENVS))
        for place in range(envs.start // BLOCK_ENVS, -(-envs.stop // BLOCK_ENVS))
    ]
    return np.concatenate(parts)[envs.start % BLOCK_ENVS :]


class Uniforms:
    """Numbers uniform in [0, 1).  Those of env i in step t, `size` each, depend on (key, i, t) only."""

    def __init__(self, key: np.ndarray, envs: range, size: int) -> None:
        self._key, self._envs, self._size = key, envs, size
        self._drawn: dict[int, np.ndarray] = {}

    def at(self, step: int) -> np.ndarray:
        """Return those of all envs in a step, an array (num_envs, size) of float64; steps may come in any order."""
        if not self._size:  # Most policies draw nothing.
            return np.empty((len(self._envs), 0))
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._drawn:
            self._drawn[block] = draw_block(self._key, 0, block, self._envs, self._draw)
        return self._drawn[block][:, row]

    def _draw(self, draws: np.random.Generator, num_envs: int) -> np.ndarray:
        return draws.random((num_envs, BLOCK_STEPS, self._size))

    def forget(self, step: int) -> None:
        """Drop those that only steps before this one need."""
        for block in [block for block in self._drawn if block < step // BLOCK_STEPS]:
            del self._drawn[block]


def categorical(logits: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Draw from the categories of softmaxes (rows, categories), by the inverse of the distribution function: int64.

    It is the first category at which the sum of probabilities is above the row's uniform number (Devroye, *Non-Uniform
    Random Variate Generation*, 1986, III.2.1).  A category of minus infinity is never drawn, one of infinity instead of
    all others.
    """
    logits = np.asarray(logits, np.float64)
    top = logits.max(axis=1, keepdims=True)
    if (is_certain := top == np.inf).any():
        logits = np.where(is_certain, np.where(logits == np.inf, 0.0, -np.inf), logits)
        top = np.where(is_certain, 0.0, top)
    sums = np.cumsum(np.exp(logits - top), axis=1)
    total = sums[:, -1]
    # Rounding may make the product the total, which no sum is above.
    places = np.minimum(uniforms * total, np.nextafter(total, 0.0))
    return np.count_nonzero(sums <= places[:, None], axis=1).astype(np.int64, copy=False)


def multi_categorical(logits: np.ndarray, counts: Sequence[int], uniforms: np.ndarray) -> np.ndarray:
    """Draw from softmaxes side by side, of so many categories each: (rows, components); see `categorical`."""
    parts = np.split(logits, np.cumsum(counts)[:-1], axis=1)
    return np.stack([categorical(part, uniforms[:, index]) for index, part in enumerate(parts)], axis=1)


def modes(logits: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return the most likely category of each component, the first of equals: (rows, components) int64."""
    if len(counts) == 1:
        return logits.argmax(axis=1)[:, None]
    parts = np.split(logits, np.cumsum(counts)[:-1], axis=1)
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def bernoulli(logits: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Draw bools that are True with the probability sigmoid(logit); all arguments have the same shape."""
    # It is 1 / (1 + exp(-logit)), which would overflow.
    return uniforms < 0.5 * (1.0 + np.tanh(0.5 * np.asarray(logits, np.float64)))


def num_normal_uniforms(num_draws: int) -> int:
    """Return the number of uniforms that `normal` needs for some draws: one each, and an even number."""
    return num_draws + num_draws % 2


def normal(uniforms: np.ndarray) -> np.ndarray:
    """Draw from the standard normal distribution, two draws of two uniforms in a row; none is farther from 0 than 8.6.

    They are sqrt(-2 log(1 - u)) times cos(2 pi v) and sin(2 pi v) (Box and Muller, *A Note on the Generation of Random
    Normal Deviates*, 1958).
    """
    first, second = np.ascontiguousarray(uniforms[:, 0::2]), np.ascontiguousarray(uniforms[:, 1::2])
    radius, angle = np.sqrt(-2.0 * np.log1p(-first)), 2.0 * np.pi * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(uniforms.shape)


def gaussian(mean: np.ndarray, std: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Draw from independent normal distributions: (rows, components) float64.

    Each row needs `num_normal_uniforms(components)` uniforms; `std` may be of all rows.
    """
    return np.asarray(mean, np.float64) + np.asarray(std, np.float64) * normal(uniforms)[:, : mean.shape[1]]
