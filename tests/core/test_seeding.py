"""Every stream of random numbers comes from (seed, env_index, ...) and overlaps no other."""

import tracemalloc
from itertools import islice, product

import numpy as np
import pytest
from jobs import Job, Start, datasets

from mpi_rollout.core.seeding import (
    WordsOfEnvs,
    draws_of_block,
    episode_seeds,
    policy_key,
    seed_of_slice,
    seeds_of_episodes,
)


def first_seeds(seed: int, env_index: int, count: int) -> list[int]:
    return list(islice(episode_seeds(seed, env_index), count))


SEEDS = 0, 7, 2**32 - 1, 2**70, 2**128 - 1, 2**128, 2**200  # Of 1 to 7 words; a pool has 4.
ENVS = 0, 1, 5, 399_999, 2**32 - 1


def words_of(seed: int, env_index: int, count: int) -> np.ndarray:
    return np.random.SeedSequence(seed, spawn_key=(env_index,)).generate_state(count) & 0x7FFFFFFF


def test_episode_k_has_31_bits_of_word_k_of_the_envs_own_sequence():
    for seed, env_index in product(SEEDS, ENVS):
        words = words_of(seed, env_index, 100)
        assert first_seeds(seed, env_index, 100) == words.tolist()
        assert seeds_of_episodes(seed, np.full(100, env_index), np.arange(100)).tolist() == words.tolist()


def test_seeds_may_begin_with_any_episode():
    words = words_of(9, 3, 10**6 + 100)
    assert (seeds_of_episodes(9, np.full(len(words), 3), np.arange(len(words))) == words).all()
    for first in (1, 2, 3, 4, 63, 1000, 10**6):
        assert list(islice(episode_seeds(9, 3, first), 100)) == words[first : first + 100].tolist()


def test_late_seeds_take_no_more_memory_than_the_first_ones():
    tracemalloc.start()
    try:
        seeds, env, late = episode_seeds(0, 0, 10**15), np.array([399_999]), np.array([10**15])
        for _ in range(20_000):
            next(seeds)
        seeds_of_episodes(0, env, late)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000


def test_seeds_are_python_integers_that_an_int32_holds():
    seeds = first_seeds(2**70, 2**20, 200)
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    assert seeds_of_episodes(0, np.array([], np.int64), np.array([], np.int64)).shape == (0,)


def test_runs_with_seeds_0_and_1_share_no_stream():
    streams = [tuple(first_seeds(seed, index, 8)) for seed in (0, 1) for index in range(200)]
    assert len(set(streams)) == len(streams)
    values = [seed for stream in streams for seed in stream]
    assert len(set(values)) == len(values)


def test_policies_draw_from_a_stream_of_their_own_for_each_seed_use_leaf_and_block():
    keys = [policy_key(seed, is_by_masks) for seed in (0, 1) for is_by_masks in (False, True)]
    blocks = list(product((0, 1), (0, 1, 2), (0, 1, 2)))
    streams = {draws_of_block(key, *block).bytes(2**16) for key in keys for block in blocks}
    assert len(streams) == len(keys) * len(blocks)
    words = [set(np.frombuffer(stream, np.uint64).tolist()) for stream in streams]
    assert len(set.union(*words)) == len(streams) * 2**13  # No stream goes on where another one begins.
    assert draws_of_block(policy_key(0), 1, 2, 3).bytes(16) == draws_of_block(policy_key(0), 1, 2, 3).bytes(16)


def test_slices_have_seeds_of_their_own():
    slices = [(seed, range(start, stop)) for seed in (0, 1) for start, stop in ((0, 4), (4, 8), (0, 8))]
    assert len({seed_of_slice(*each) for each in slices}) == len(slices)
    assert seed_of_slice(0, range(4)) not in first_seeds(0, 0, 100)
    assert max(seed_of_slice(seed, range(4)) for seed in range(200)) < 2**30  # An env's place can be added.


GLOBAL = """
import random
import gymnasium
import numpy as np
import stopping_envs


class Global(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.drawn, self.num_steps = np.random.random(), 0

    def observe(self):
        return np.array([self.drawn, np.random.random(), random.random()])

    def reset(self, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        self.num_steps += 1
        return self.observe(), 0.0, self.num_steps % 4 == 0, False, {}


calls = []


def act(observations):
    calls.append(observations)
    stopping_envs.stop_if(str(len(calls)))
    return np.zeros(len(observations), int)
"""


@pytest.mark.any_mpi
def test_draws_of_global_generators_are_the_same_on_the_same_ranks_and_go_on_in_a_continued_run(job: Job):
    (job.folder / "globally.py").write_text(GLOBAL)
    env = ("--env-factory", "./globally.py:Global", "--progress", "none")
    run = (*env, "--num-envs", "4", "--num-steps", "9", "--seed", "1")
    first, again = (datasets(job.collect(2, *run, out=f"{name}.h5"))["observations"] for name in "ab")
    assert first.tobytes() == again.tobytes() and len(set(first[..., 1:].ravel())) == 2 * 10 * 4
    assert len(set(first[0, :, 0])) == 4

    run = (*env, "--policy", "./globally.py:act", "--num-envs", "2", "--num-steps", "24", "--out", "run.h5")
    stopped, other = Start(run, environment={"STOP_AT": "raise:14"}), Start((*run[:-1], "other.h5", "--seed", "1"))
    assert [end.code for end in job.series([stopped, Start(run), other])] == [70, 0, 0]
    observations = [datasets(job.folder / name)["observations"] for name in ("run.h5", "other.h5")]
    drawn = [set(columns[..., 2].ravel()) for columns in observations]
    assert len(drawn[0]) == 25 * 2 and not drawn[0] & drawn[1]


@pytest.mark.any_mpi
def test_a_trainers_own_global_generators_stay_as_they_are(job: Job):
    code = """
import random
import numpy as np
import mpi_rollout
random.seed(3), np.random.seed(3)
before = random.getstate(), np.random.get_state()[1].tolist()
with mpi_rollout.connect("CartPole-v1", 2) as envs:
    envs.reset(seed=1)
    envs.step(envs.action_space.sample())
assert (random.getstate(), np.random.get_state()[1].tolist()) == before
"""
    assert job.script(None, code).code == 0


def test_words_of_envs_come_from_philox_by_block_and_do_not_depend_on_who_draws_them():
    key = policy_key(7)
    words = WordsOfEnvs(key, 1, range(1000))(2)
    assert words.dtype == np.uint64 and len(set(words.tolist())) == 1000
    for envs in (range(1), range(3, 9), range(999, 1000), range(64, 192)):
        assert np.array_equal(WordsOfEnvs(key, 1, envs)(2), words[envs.start : envs.stop])
    streams = [(policy_key(8), 1, 2), (key, 0, 2), (key, 1, 3)]
    others = [WordsOfEnvs(key, leaf, range(1000))(block) for key, leaf, block in streams]
    assert not any(set(words.tolist()) & set(other.tolist()) for other in others)
    words = WordsOfEnvs(key, 1, range(6, 40))
    for block in (3, 0, 2**40, 3):  # In any order.
        philox = np.random.Philox(counter=np.array([1, 0, block, 1], np.uint64), key=key)
        assert np.array_equal(words(block), philox.random_raw(36)[2:])
