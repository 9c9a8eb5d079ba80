"""Envs that are the same object are refused, also by a rank that has only one of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest

from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.envs.sharing import Holding, check_instances
from mpi_rollout.errors import SameEnvError

POLE = "CartPole-v1"
shared = gymnasium.make(POLE)
last: gymnasium.Env | None = None


def of_module() -> gymnasium.Env:
    return shared


def wrapped(env: gymnasium.Env) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(env, 7)


def kept() -> gymnasium.Env:
    global last
    last = gymnasium.make(POLE)
    return last


def by_index(env_index: int) -> gymnasium.Env:
    return shared if env_index == 1 else gymnasium.make(POLE)


def check(make: Any, env_index: int = 1) -> None:
    """Make one env of three, as a rank does that has no other."""
    maker = EnvMaker(make)
    holding = Holding(maker, 3, env_index)
    holding.check(make_slice(maker, range(env_index, env_index + 1)))


def held(env: gymnasium.Env) -> Callable[[], gymnasium.Env]:
    return lambda: env


SAME = {
    "closure": held(shared),
    "global": of_module,
    "default": lambda env=shared: env,
    "argument": partial(wrapped, shared),
    "keyword": partial(wrapped, env=shared),
    "inside": partial(held(shared)),
    "list": (held(shared), held(shared), held(shared)),
    "others": (of_module, lambda env=shared: env, held(gymnasium.make(POLE))),
}
OTHER = {
    "new": partial(gymnasium.make, POLE),
    "kept": kept,
    "by index": by_index,
    "each its own": tuple(held(gymnasium.make(POLE)) for _ in range(3)),
    "id": POLE,
}


@pytest.mark.parametrize("name", SAME)
def test_what_a_callable_holds_it_gives_to_all_envs(name: str):
    with pytest.raises(SameEnvError, match=r"^env 0 and env 1 are the same object; what makes envs must return a new"):
        check(SAME[name])
    with pytest.raises(ValueError, match=r"^env 0 and env 1 are the same object"):  # As DummyVecEnv has it.
        check(SAME[name], 0)


@pytest.mark.parametrize("name", OTHER)
def test_envs_of_their_own_are_accepted(name: str):
    for env_index in (1, 2, 1):
        check(OTHER[name], env_index)


def test_two_envs_of_a_rank_that_are_the_same_are_refused_whatever_made_them():
    pool = [shared] * 5
    with pytest.raises(SameEnvError, match="env 3 and env 4 are the same object"):
        check_instances([(range(3, 5), make_slice(EnvMaker(lambda: pool[0]), range(3, 5)))])
