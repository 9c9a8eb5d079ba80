"""Where all random numbers of a run come from: from (seed, env_index, episode or step), and not from the rank.

Python's and NumPy's global generators are the exception: a process has one of each for all its envs.

All streams are `numpy.random.SeedSequence(seed, spawn_key=...)`.  The length of the key separates the uses: one word
for an env's episodes, two for a policy's draws, three for a natively vectorized slice, four for the global generators,
five for a policy's draws by action masks, six for those of a policy that acts in blocks.  Gymnasium's own `seed + i` is
not used: two runs with seeds 0 and 1 would share all but one of their streams.

A policy's draws have a stream for each block of 64 steps of 64 envs: Philox with the block as its counter.  So any rank
can draw those of its own envs alone.  Where an action is a bit, a word for each env has the actions of 64 steps.

The seed of episode k of env i is word k of `SeedSequence(seed, spawn_key=(i,)).generate_state(...)`, without its
highest bit.  NumPy draws all words before it as well, but they do not depend on each other: here any word is computed
alone, in constant time and memory.  The formulas and constants are those of `numpy/random/bit_generator.pyx`, which
NEP 19 keeps as they are.

Seeds that envs get are below 2**31, since simulators take an int32.
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain, count, repeat

import numpy as np

INIT_A, MULT_A = 0x43B0D7E5, 0x931E8875  # The hash that mixes words into the pool of a SeedSequence.
INIT_B, MULT_B = 0x8B51F9DD, 0x58F38DED  # The hash that draws words from it.
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
POOL_SIZE, BITS = 4, 32  # A pool has four words of 32 bits.
LARGEST_SEED = 2**31 - 1  # Of an env: an int32.  All bits of a word are equally random.
LARGEST_SLICE_SEED = 2**30 - 1  # To which its envs may add their places.


class Reproducibility(StrEnum):
    """On what the data of an env depend, besides its actions.  Each value promises more than those after it.

    With EPISODE and ENV they are the same on any number of ranks, and a run can be continued.
    """

    EPISODE = "episode"  # The data depend on the run's seed, the env's index and the number of the episode.
    ENV = "env"  # They depend on the seed, the index, and all of the env's steps before.
    SLICE = "slice"  # They depend on the other envs of the rank, too: on a generator, or on their number.

    @property
    def words(self) -> str:
        return {
            "episode": "each episode has a seed of its own",
            "env": "each env has a stream of random numbers of its own",
            "slice": "the envs of a rank depend on each other",
        }[self]


def episode_seeds(seed: int, env_index: int, first: int = 0) -> Iterator[int]:
    """Yield the seeds of one env's episodes from episode `first` on, endlessly."""
    pool = np.random.SeedSequence(seed, spawn_key=(env_index,)).pool.tolist()
    modulus = 2**BITS
    constant = INIT_B * pow(MULT_B, first, modulus) % modulus
    for episode in count(first):
        word = pool[episode % POOL_SIZE] ^ constant
        constant = constant * MULT_B % modulus
        word = word * constant % modulus
        yield (word ^ word >> 16) & LARGEST_SEED


def seed_at_first(seed: int, env_index: int) -> Iterator[int | None]:
    """Yield the seed of one env's first episode, then None: the others go on with the env's own generator."""
    return chain([next(episode_seeds(seed, env_index))], repeat(None))


def seeds_of_episodes(seed: int, env_indices: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Return the same seeds for many envs: those of `episodes[j]` of env `env_indices[j]`, uint32."""
    num_words = max(-(-int(seed).bit_length() // BITS), POOL_SIZE)  # Each is hashed for each word of the pool.
    place = episodes % POOL_SIZE
    env_words = _hashed(env_indices.astype(np.uint32), INIT_A, MULT_A, POOL_SIZE * num_words + place)
    pool = MIX_LEFT * np.random.SeedSequence(seed).pool[place] - MIX_RIGHT * env_words
    return _hashed(pool ^ pool >> 16, INIT_B, MULT_B, episodes) & np.uint32(LARGEST_SEED)


def _hashed(words: np.ndarray, init: int, mult: int, times: np.ndarray) -> np.ndarray:
    """Hash uint32 words, `words[j]` after `times[j]` others; the constant of a hash grows with each."""
    constants = np.uint32(init) * np.power(np.uint32(mult), times.astype(np.uint32))
    words = (words ^ constants) * (constants * np.uint32(mult))
    return np.asarray(words ^ words >> 16)


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
        self._state = self._philox.state  # Setting it again takes a quarter of the time of a new one.
        self._first = envs.start % 4  # Philox gives four words at a time.
        self._stop = self._first + len(envs)

    def __call__(self, step_block: int) -> np.ndarray:
        """Return the words (num_envs,) uint64 of a block of steps."""
        self._state["state"]["counter"][2] = step_block
        self._philox.state = self._state
        return self._philox.random_raw(self._stop)[self._first :]


def seed_global_generators(seed: int, rank: int, num_steps: int = 0, first_env: int = 0) -> None:
    """Seed `random` and `numpy.random`, from which some envs and policies draw.

    Their draws may differ on another number of ranks, and after the run was continued, with `num_steps` steps already:
    without these, the run would repeat the draws of its beginning.  So would runs of other envs of one larger run
    repeat each other's without `first_env`.
    """
    words = np.random.SeedSequence(seed, spawn_key=(rank, num_steps, 0, first_env)).generate_state(8)
    random.seed(words[:4].tobytes())
    np.random.seed(words[4:])


class RankGenerators:
    """Python's and NumPy's global generators of one rank of a run, as a `Service`."""

    name = "generators"

    def __init__(self, seed: int, rank: int, first_env: int = 0) -> None:
        self._seed, self._rank, self._first_env = seed, rank, first_env

    def seed_again(self, num_steps: int) -> None:
        """Seed them for a run that goes on after this many steps, see `seed_global_generators`."""
        seed_global_generators(self._seed, self._rank, num_steps, self._first_env)


def seed_of_slice(seed: int, env_indices: range) -> int:
    """Return the one seed of a natively vectorized slice, whose envs share one generator."""
    key = (env_indices.start, env_indices.stop, 0)
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0]) & LARGEST_SLICE_SEED
