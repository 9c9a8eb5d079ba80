"""Bare loops: what is stepped, what is counted, by a clock that the test moves."""

from collections.abc import Callable
from itertools import count, repeat

import numpy as np
import pytest
from envs import Counting
from gymnasium.vector import SyncVectorEnv

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.envs import bare
from mpi_rollout.envs.env_maker import maker_of
from mpi_rollout.envs.loop import LoopVectorEnv

ACTIONS = [np.array([2, 2])] * 2


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with each look at the clock."""
    seconds = count()
    monkeypatch.setattr(bare, "perf_counter", lambda: float(next(seconds)))


def test_single_envs_are_stepped_and_reset_with_the_seeds_of_their_episodes():
    """Episodes of 3 steps in one env and of 4 in the other."""
    loop = LoopVectorEnv([Counting] * 2)
    measure = bare._bare_loop(loop, [repeat(0), repeat(1)], [[2, 2]] * 2)
    assert measure(12.0) == 2.0
    assert [env.episode for env in loop.envs] == [4, 3] and [env.seed for env in loop.envs] == [0, 1]
    assert measure(0.5) == 2.0


def test_resets_of_natively_vectorized_envs_are_no_steps():
    """In 12 calls the first env ends in three of them, the second in two: the next call is then a reset."""
    measure = bare._bare_vector_loop(SyncVectorEnv([Counting] * 2), 0, ACTIONS)
    assert measure(12.0) == (24 - 5) / 12


@pytest.mark.parametrize("indices", [range(2), range(4, 6)])
def test_a_rank_makes_its_own_envs_and_seeds_them_as_the_run_does(monkeypatch: pytest.MonkeyPatch, indices: range):
    given: list[list[int]] = []

    def loop(slice_: LoopVectorEnv, seeds: list, actions: list) -> Callable[[float], float]:
        given.append([next(each) for each in seeds])
        assert slice_.num_envs == 2 and [list(row) for row in actions] == [[2, 2]] * 2
        return lambda seconds: seconds

    monkeypatch.setattr(bare, "_bare_loop", loop)
    maker = maker_of(RolloutConfig(env_factory="envs:Counting", num_envs=6))
    assert bare.make_bare(maker, indices, 7, ACTIONS)(3.0) == 3.0
    assert given == [[next(episode_seeds(7, index)) for index in indices]]


def test_steps_and_resets_of_one_env_are_timed():
    env = Counting()
    times = bare.time_steps(env, window_s=0.0)
    assert len(times.step_s) == 20 and (times.step_s == 1).all() and (times.reset_s == 1).all()
    assert len(times.reset_s) == env.episode > 2
    assert (times.reset_mean_s, times.reset_spread_s) == (1.0, 0.0) and times.steps_per_episode == 20 / env.episode


def test_an_env_is_timed_for_as_long_as_was_asked():
    assert len(bare.time_steps(Counting(), window_s=500.0).step_s) > 100


def test_without_an_end_of_an_episode_there_is_no_time_of_a_reset():
    times = bare.Times(np.ones(9), np.array([]))
    assert (times.reset_mean_s, times.reset_spread_s, times.steps_per_episode) == (0.0, 0.0, 0.0)
