"""Natively vectorized envs whose episodes have seeds of their own."""

import numpy as np
import pytest
from native_envs import seeded

from mpi_rollout.core.seeding import Reproducibility, episode_seeds
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.native_makers import takes_episode_seeds
from mpi_rollout.errors import UsageError

SEED, NUM_STEPS, SOME = 5, 60, range(3, 8)
ENTRY_POINT = {"vectorization_mode": "vector_entry_point", "num_threads": 1}


def test_episodes_have_the_seeds_of_a_loop_and_do_not_depend_on_the_others():
    envs = EnvMaker(seeded, {"ends_at": 9}, "native").native(SOME, SEED)
    actions = np.random.default_rng(1).integers(0, envs.single_action_space.n, (NUM_STEPS, len(SOME)))
    rows = [[np.array(envs.reset(seed=SEED)[0])]]
    rows += [[np.array(array) for array in envs.step(row)[:4]] for row in actions]
    seeds = {place: episode_seeds(SEED, index) for place, index in enumerate(SOME)}
    begins = np.ones(len(SOME), bool)
    for row in rows:
        for place in np.flatnonzero(begins):
            first = np.random.default_rng(next(seeds[place]) & 0x7FFFFFFF).random()
            assert row[0][place].tolist() == [0, np.float32(first)]
        begins = np.logical_or(*row[2:]) if row is not rows[0] else np.zeros(len(SOME), bool)


def test_envs_without_a_seed_are_left_alone():
    pytest.importorskip("ale_py")
    envs = EnvMaker("ale_py:ALE/Breakout-v5", {}, **ENTRY_POINT).native(SOME)
    assert envs.reset()[0].shape == (len(SOME), 4, 84, 84)
    assert envs.step(np.zeros(len(SOME), np.int64))[0].shape == (len(SOME), 4, 84, 84)
    envs.close()


def test_ales_episodes_have_seeds_where_its_version_can_reset_some_envs():
    for version in ("0.10.1", "0.11", "0.12.0", "0.12"):
        assert not takes_episode_seeds(None, version) and not takes_episode_seeds(False, version)
        with pytest.raises(UsageError, match=rf"episode_seeds needs ale-py 0\.12\.1 or later, got {version}"):
            takes_episode_seeds(True, version)
    for version in ("0.12.1", "0.12.2rc1", "0.13", "1.0.0"):
        assert takes_episode_seeds(None, version) and not takes_episode_seeds(False, version)


def test_ale_promises_less_where_nobody_wants_seeds_of_episodes():
    pytest.importorskip("ale_py")
    envs = EnvMaker("ale_py:ALE/Breakout-v5", {"episode_seeds": False}, **ENTRY_POINT).native(SOME, SEED)
    assert envs.reproducibility == Reproducibility.ENV and not hasattr(envs, "has_episode_seeds")
    envs.close()
