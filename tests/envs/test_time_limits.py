"""Which wrappers are stepped over, and when their limits are due; `test_loop` has what they do in steps."""

import gymnasium
import numpy as np
from envs import Counting
from gymnasium import wrappers

from mpi_rollout.envs.time_limits import TimeLimits, step_over_wrappers


class OwnLimit(wrappers.TimeLimit):
    """May do more than the one that it is made of."""


def limited(limit: int) -> wrappers.TimeLimit:
    """A time limit around an env."""
    return wrappers.TimeLimit(Counting(), limit)


def test_only_the_outermost_wrappers_of_make_are_stepped_over():
    inner = wrappers.ClipAction(gymnasium.make("Pendulum-v1"))
    env = wrappers.OrderEnforcing(wrappers.TimeLimit(wrappers.PassiveEnvChecker(inner), 7))
    assert step_over_wrappers(env) == (inner, env.env)
    second = wrappers.TimeLimit(env, 9)
    assert step_over_wrappers(wrappers.OrderEnforcing(second)) == (env.env, second)


def test_a_bare_env_and_a_wrapper_of_ones_own_are_stepped_themselves():
    for env in (Counting(), OwnLimit(Counting(), 3)):
        assert step_over_wrappers(env) == (env, None)


def test_no_deadline_is_looked_for_before_it_can_come():
    limits = TimeLimits([limited(10), limited(6)])
    assert limits.next_deadline == 6
    assert TimeLimits([None, None]).next_deadline == np.inf


def test_an_env_that_takes_no_steps_reaches_its_limit_only_when_it_has_begun_again():
    limits, truncations = TimeLimits([limited(2), limited(6)]), np.zeros(2, bool)
    limits.hold(0)
    limits.num_steps = 4
    limits.apply(truncations)
    assert not truncations.any() and limits.next_deadline == 6 and limits.elapsed(0) == 0
    limits.begin(0)
    limits.num_steps = 6
    limits.apply(truncations)
    assert truncations.all() and limits.elapsed(0) == 2


def test_an_env_that_begins_after_all_were_held_reaches_its_limit():
    limits, truncations = TimeLimits([limited(5), limited(5)]), np.zeros(2, bool)
    limits.hold(0), limits.hold(1)
    limits.apply(truncations)
    limits.begin(0)
    limits.num_steps = 5
    assert limits.next_deadline <= 5
    limits.apply(truncations)
    assert truncations.tolist() == [True, False]
