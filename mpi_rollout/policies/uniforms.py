"""Random numbers by env and step, for policies that draw: the same whichever rank asks, and for whichever envs."""

import numpy as np

from mpi_rollout.core.seeding import draws_of_block

BLOCK_STEPS = BLOCK_ENVS = 64  # Drawn at once from one generator: to make another one costs 5 us.


class Uniforms:
    """Numbers uniform in [0, 1).

    Those of env i in step t depend on (key, i, t) only.

    Parameters
    ----------
    size
        How many an env needs in a step.
    """

    def __init__(self, key: np.ndarray, envs: range, size: int) -> None:
        self._key, self._envs, self._size = key, envs, size
        self._drawn: dict[int, np.ndarray] = {}

    def at(self, step: int) -> np.ndarray:
        """Return those of all envs in a step, an array (num_envs, size) of float64; steps may come in any order."""
        block, row = divmod(step, BLOCK_STEPS)
        if block not in self._drawn:
            self._drawn[block] = self._draw(block)
        return self._drawn[block][:, row]

    def forget(self, step: int) -> None:
        """Drop those that only steps before this one need."""
        for block in [block for block in self._drawn if block < step // BLOCK_STEPS]:
            del self._drawn[block]

    def _draw(self, block: int) -> np.ndarray:
        """Return numbers of shape (num_envs, BLOCK_STEPS, size)."""
        first, stop = self._envs.start // BLOCK_ENVS, -(-self._envs.stop // BLOCK_ENVS)
        parts = []
        for place in range(first, stop):
            num_envs = min(BLOCK_ENVS, self._envs.stop - place * BLOCK_ENVS)
            draws = draws_of_block(self._key, 0, block, place)
            parts.append(draws.random((num_envs, BLOCK_STEPS, self._size)))
        return np.concatenate(parts)[self._envs.start % BLOCK_ENVS :]
