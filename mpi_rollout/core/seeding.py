"""Where all random numbers of a run come from: from (seed, env_index, episode or step), and not from the rank.

Python's and NumPy's global generators are the exception: a process has one of each for all its envs.

All streams are `numpy.random.SeedSequence(seed, spawn_key=...)`.  The length of the key separates the uses: one word
for an env's episodes, two for a policy's draws, three for a natively vectorized slice, four for the global generators,
five for a policy's draws by action masks, six for those of a policy that acts in blocks.  Gymnasium's own `seed + i` is
not used: two runs with seeds 0 and 1 would share all but one of their streams.

A policy's draws have a stream for each block of 64 steps of 64 envs: Philox with the block as its counter.  So any rank
can draw those of its own envs alone.  Where an action is a bit, a word for each env has the actions of 64 steps.

The seed of episode k of env i is word k of `SeedSequence(seed, spawn_key=(i,)).generate_state(...)`.
"""

import random
from collections.abc import Iterator

import numpy as np

DRAWN_AHEAD = 64  # Seeds drawn one by one would cost more than the resets that they are for.


def episode_seeds(seed: int, env_index: int) -> Iterator[int]:
    """Yield the seeds of one env's episodes, 0 <= seed < 2**32, endlessly."""
    sequence = np.random.SeedSequence(seed, spawn_key=(env_index,))
    start, stop = 0, DRAWN_AHEAD
    while True:
        yield from sequence.generate_state(stop)[start:].tolist()
        start, stop = stop, 2 * stop


class SeedTable:
    """The same seeds by envs and episode numbers: arrays in, arrays out.

    Parameters
    ----------
    env_indices
        Of the envs that are asked for by their places in it.
    """

    def __init__(self, seed: int, env_indices: range) -> None:
        self._sequences = [np.random.SeedSequence(seed, spawn_key=(index,)) for index in env_indices]
        self._draw(DRAWN_AHEAD)

    def _draw(self, num_episodes: int) -> None:
        self._seeds = np.array([sequence.generate_state(num_episodes) for sequence in self._sequences])

    def __call__(self, places: np.ndarray, episodes: np.ndarray) -> np.ndarray:
        """Return the uint32 seeds of `episodes[j]` of the env at `places[j]`."""
        needed = int(np.max(episodes, initial=0)) + 1
        if needed > self._seeds.shape[1]:
            self._draw(2 * needed)
        return np.asarray(self._seeds[places, episodes])


def model_key(seed: int) -> np.ndarray:
    """Return the Philox key of what a policy that acts in blocks draws from."""
    return np.random.SeedSequence(seed, spawn_key=(0,) * 6).generate_state(2, np.uint64)


def policy_key(seed: int, is_by_masks: bool = False) -> np.ndarray:
    """Return the Philox key of a policy's draws, or of its choices among the actions that masks allow."""
    spawn_key = (0, 0, 0, 0, 0) if is_by_masks else (0, 0)
    return np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(2, np.uint64)


def draws_of_block(key: np.ndarray, leaf: int, step_block: int, env_block: int) -> np.random.Generator:
    """Return the stream from which one leaf of the actions of one block is drawn, of some steps of some envs.

    Draw in the order env, step, component: then no draw depends on the number of envs.
    """
    counter = np.array([0, env_block, step_block, leaf], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


class WordsOfEnvs:
    """Random words for each of some envs, 64 random bits each, for the steps of one block after the other.

    Those of all envs are one stream, so that drawing a word takes nanoseconds and no generator has to be made for it.
    """

    def __init__(self, key: np.ndarray, leaf: int, envs: range) -> None:
        self._philox = np.random.Philox(counter=np.array([envs.start // 4, 0, 0, leaf], np.uint64), key=key)
        self._state = self._philox.state  # To be set again takes a quarter of the time of a new one.
        self._first = envs.start % 4  # Philox gives four words at a time.
        self._stop = self._first + len(envs)

    def __call__(self, step_block: int) -> np.ndarray:
        """Return the words (num_envs,) uint64 of a block of steps."""
        self._state["state"]["counter"][2] = step_block
        self._philox.state = self._state
        return self._philox.random_raw(self._stop)[self._first :]


def seed_global_generators(seed: int, rank: int, num_steps: int = 0) -> None:
    """Seed `random` and `numpy.random`, from which some envs and policies draw.

    Their draws may differ on another number of ranks, and after the run was continued.

    Parameters
    ----------
    num_steps
        The steps that a continued run has already.  Without it, the run would repeat the draws of its beginning.
    """
    words = np.random.SeedSequence(seed, spawn_key=(rank, num_steps, 0, 0)).generate_state(8)
    random.seed(words[:4].tobytes())
    np.random.seed(words[4:])


def seed_of_slice(seed: int, env_indices: range) -> int:
    """Return the one seed of a natively vectorized slice, whose envs share one generator."""
    key = (env_indices.start, env_indices.stop, 0)
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])
