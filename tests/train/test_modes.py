"""However envs are divided and served, a trainer gets what Gymnasium's `SyncVectorEnv` gives, bit for bit."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jobs import Job, once
from oracle import differences, names_in, record

from mpi_rollout.core.partition import Division
from mpi_rollout.core.seeding import seed_of_slice
from mpi_rollout.errors import Option
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.paths import load_callable

NUM_ENVS = 11  # Over 3 ranks, with and without the root, and of these over two groups: slices of unequal length.
ENVS: dict[str, dict[str, Any]] = {  # With the keyword arguments that make episodes short.
    "CartPole-v1": {"max_episode_steps": 12},
    "Pendulum-v1": {"max_episode_steps": 9},
    "FrozenLake-v1": {},
    "envs:Counting": {},
    "envs:Nested": {},
    "envs:Image": {},
    "envs:Telling": {},
    "envs:Loose": {},
}
WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "two groups": {"num_groups": 2},
    "first ready": {"batch_size": 1},
    "dedicated root": {"root_envs": 0},
    "dedicated root, first ready": {"root_envs": 0, "batch_size": 1},
    "views": {"copy": False},
    "views of two groups": {"copy": False, "num_groups": 2},
}
WAITS: dict[str, dict[str, Any]] = {
    "spinning": {"wait": "spin"},
    "two groups, spinning": {"wait": "spin", "num_groups": 2},
    "first ready, spinning": {"wait": "spin", "batch_size": 1},
    "sleeping": {"wait": "sleep"},
    "two groups, sleeping": {"wait": "sleep", "num_groups": 2},
    "first ready, sleeping": {"wait": "sleep", "batch_size": 1, "root_envs": 0},
}
IN_ALL_WAYS = [("envs:Nested", "same_step"), ("envs:Telling", "same_step")]
IN_SOME = {  # In these, and on one rank in the first of them.
    **dict.fromkeys(IN_ALL_WAYS, ("first ready", "views")),
    ("envs:Telling", "next_step"): ("first ready", "dedicated root", "views of two groups"),
    ("envs:Telling", "disabled"): ("two groups", "dedicated root, first ready", "views"),
}
CASES = [  # The others in lockstep, and in one mode: tests/envs/test_loop.py has all envs in all modes.
    *IN_SOME,
    ("CartPole-v1", "next_step"),
    ("Pendulum-v1", "same_step"),
    ("FrozenLake-v1", "disabled"),
    ("envs:Counting", "next_step"),
    ("envs:Image", "disabled"),
    ("envs:Loose", "same_step"),
]
SIMULATORS = {
    "HumanoidStandup-v5": ("mujoco", {"max_episode_steps": 5}),
    "ale_py:ALE/Breakout-v5": ("ale_py", {"max_episode_steps": 5}),
}

Recorded = Callable[[int], dict[tuple[str, str, str], Any]]


def num_steps_of(env: str) -> int:
    return 10 if env == "envs:Image" else 25


def ways(env: str, mode: str, num_ranks: int) -> dict[str, dict[str, Any]]:
    some = IN_SOME.get((env, mode), ())
    if (env, mode) in IN_ALL_WAYS and num_ranks > 1:
        return WAYS | (WAITS if env == "envs:Telling" else {})
    return {name: WAYS[name] for name in ("lockstep", *(some if num_ranks > 1 else some[:1]))}


@cache
def expected(env: str, mode: str) -> list[Any]:
    make = load_callable(env, Option("env")) if env.startswith("envs:") else partial(gymnasium.make, env)
    envs = SyncVectorEnv([partial(make, **ENVS[env])] * NUM_ENVS, autoreset_mode=AutoresetMode[mode.upper()])
    return record(envs, num_steps_of(env))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """What a job on some ranks gives, for each env, mode and way; one job for all of them."""

    @once
    def of(num_ranks: int) -> dict[tuple[str, str, str], Any]:
        keys = [(env, mode, way) for env, mode in CASES for way in ways(env, mode, num_ranks)]
        every_way = WAYS | WAITS
        cases = [
            (env, NUM_ENVS, num_steps_of(env), {"env_kwargs": ENVS[env], "autoreset_mode": mode, **every_way[way]})
            for env, mode, way in keys
        ]
        found = Job(tmp_path_factory.mktemp("modes")).train(num_ranks, "recordings", cases)
        return dict(zip(keys, found, strict=True))

    return of


@pytest.mark.mpi(1, 3)
@pytest.mark.parametrize(("env", "mode"), CASES)
def test_all_that_is_returned_is_what_gymnasium_gives(recorded: Recorded, num_ranks: int, env: str, mode: str):
    for way in ways(env, mode, num_ranks):
        assert differences(recorded(num_ranks)[env, mode, way], expected(env, mode)) == [], way


@pytest.mark.mpi(1, 3)
@pytest.mark.parametrize(("env", "mode"), CASES)
def test_infos_stand_in_the_order_that_gymnasium_gives_them(recorded: Recorded, num_ranks: int, env: str, mode: str):
    for way in ways(env, mode, num_ranks):
        for found, theirs in zip(recorded(num_ranks)[env, mode, way], expected(env, mode), strict=True):
            assert names_in(found[-1]) == names_in(theirs[-1]), way


@pytest.mark.parametrize(("env", "mode"), CASES)
def test_the_recordings_have_ends_of_episodes_in_them(env: str, mode: str):
    ended = [bool((outputs[2] | outputs[3]).any()) for outputs in expected(env, mode) if len(outputs) == 5]
    assert sum(ended) >= 2 and not all(ended)


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("env", SIMULATORS)
def test_simulators_too_give_what_they_give_in_gymnasium(job: Job, num_ranks: int, env: str):
    package, kwargs = SIMULATORS[env]
    pytest.importorskip(package)
    modes = ["next_step", "same_step"]
    cases = [(env, 3, 12, {"env_kwargs": kwargs, "autoreset_mode": mode}) for mode in modes]
    for mode, found in zip(modes, job.train(num_ranks, "recordings", cases), strict=True):
        oracle = SyncVectorEnv([partial(gymnasium.make, env, **kwargs)] * 3, autoreset_mode=AutoresetMode[mode.upper()])
        assert differences(found, record(oracle, 12)) == [], mode


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 3)
@pytest.mark.parametrize("way", ["lockstep", "two groups", "first ready"])
def test_natively_vectorized_slices_give_what_each_gives_in_gymnasium(job: Job, num_ranks: int, way: str):
    """Each slice has a seed of its own, so these data depend on how envs are divided; rewards are float64 here."""
    options = {"vectorization_mode": "vector_entry_point", **WAYS[way]}
    [found] = job.train(num_ranks, "recordings", [("CartPole-v1", NUM_ENVS, 40, options)])
    division = Division(NUM_ENVS, num_ranks, None, WAYS[way].get("num_groups", 1), "batch_size" in WAYS[way])
    for envs in (envs for rank in range(num_ranks) for envs in division.envs_of(rank)):
        oracle = gymnasium.make_vec("CartPole-v1", len(envs), vectorization_mode="vector_entry_point")
        policy, mine = RandomPolicy(oracle.single_action_space, NUM_ENVS, 5), slice(envs.start, envs.stop)
        expected = [oracle.reset(seed=seed_of_slice(5, envs))] + [oracle.step(policy()[mine]) for _ in range(40)]
        for ours, theirs in zip(found, expected, strict=True):
            if len(theirs) == 5:
                theirs = (theirs[0], theirs[1].astype(np.float64), *theirs[2:])
            assert differences((*(part[mine] for part in ours[:-1]), ours[-1]), theirs) == []
