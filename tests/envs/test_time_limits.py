"""Which wrappers are stepped over, and that TimeLimit is counted for all envs at once."""

import gymnasium
import numpy as np
import pytest
from envs import Counting
from gymnasium import wrappers

from mpi_rollout.envs.time_limits import TimeLimits, step_over_wrappers


class OwnLimit(wrappers.TimeLimit):
    """May do more than the one that it is made of."""


def limited(*limits: int) -> list[wrappers.TimeLimit]:
    """Time limits around one env, the outermost first."""
    env: gymnasium.Env = Counting()
    wrapped = []
    for limit in reversed(limits):
        env = wrappers.TimeLimit(env, limit)
        wrapped.insert(0, env)
    return wrapped


def test_only_the_outermost_wrappers_of_make_are_stepped_over():
    inner = wrappers.ClipAction(gymnasium.make("Pendulum-v1"))
    env = wrappers.OrderEnforcing(wrappers.TimeLimit(wrappers.PassiveEnvChecker(wrappers.TimeLimit(inner, 9)), 7))
    stepped, limits = step_over_wrappers(env)
    assert stepped is inner and [limit._max_episode_steps for limit in limits] == [7, 9]


def test_a_bare_env_and_a_wrapper_of_ones_own_are_stepped_themselves():
    for env in (Counting(), OwnLimit(Counting(), 3)):
        assert step_over_wrappers(env) == (env, [])


def truncated(limits: TimeLimits, num_envs: int) -> list[bool]:
    """Take a step, and return which episodes end by it."""
    limits.num_steps += 1
    truncations = np.zeros(num_envs, bool)
    if limits.num_steps >= limits.next_deadline:
        limits.apply(truncations)
    return truncations.tolist()


def test_an_episode_ends_at_the_shortest_of_its_limits_and_one_without_a_limit_goes_on():
    limits = TimeLimits([limited(5, 3), limited(4), []])
    ends = [truncated(limits, 3) for _ in range(5)]
    assert ends[2] == [True, False, False] and ends[3] == [True, True, False]
    assert ends[:2] == [[False] * 3] * 2 and limits.elapsed(0) == 5


def test_an_episode_that_begins_is_counted_from_there():
    limits = TimeLimits([limited(3), limited(3)])
    ends = []
    for step in range(7):
        ends.append(truncated(limits, 2))
        for index, is_over in enumerate(ends[-1]):
            if is_over or (index, step) == (1, 0):
                limits.begin(index)
    assert [end[0] for end in ends] == [False, False, True, False, False, True, False]
    assert [end[1] for end in ends] == [False, False, False, True, False, False, True]
    assert limits.elapsed(0) == 1 and limits.elapsed(1) == 0


def test_no_deadline_is_looked_for_before_it_can_come():
    limits = TimeLimits([limited(10), limited(6)])
    assert limits.next_deadline == 6
    assert TimeLimits([[], []]).next_deadline == np.inf


def test_a_limit_of_no_steps_is_one_of_one_step():
    limits = limited(5)
    limits[0]._max_episode_steps = 0
    assert truncated(TimeLimits([limits]), 1) == [True]


def test_the_limit_of_a_new_env_counts_from_its_beginning():
    limits = TimeLimits([limited(2), limited(9)])
    truncated(limits, 2)
    limits.replace(0, limited(3))
    assert [truncated(limits, 2) for _ in range(3)] == [[False, False], [False, False], [True, False]]
    limits.replace(0, [])
    assert len(limits._wrappers) == 1


@pytest.mark.parametrize("was_reset", [False, True])
def test_wrappers_know_how_long_episodes_are_while_others_use_them_and_are_heeded_after(was_reset: bool):
    (wrapper,) = limited(5)
    if was_reset:
        wrapper.reset()
    limits = TimeLimits([[wrapper]])
    for _ in range(2):
        truncated(limits, 1)
    with limits.in_wrappers():
        assert wrapper._elapsed_steps == (2 if was_reset else None)
        wrapper._elapsed_steps, wrapper._max_episode_steps = 1, 3
    assert limits.elapsed(0) == 1
    assert [truncated(limits, 1) for _ in range(2)] == [[False], [True]]
