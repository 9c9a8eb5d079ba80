"""Random numbers by env and step, for policies that draw: the same whichever rank asks, and for whichever envs."""

from collections.abc import Callable

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
