"""`connect` with envs that differ by their index, as SyncVectorEnv, CleanRL and Stable-Baselines3 have them."""

import pytest
from jobs import Job

pytestmark = pytest.mark.any_mpi

BEGIN = """
import os
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
import mpi_rollout

POLE, NUM_ENVS = "CartPole-v1", 5


def same(first, second):
    assert set(first) == set(second) if isinstance(first, dict) else np.array_equal(first, second)


def compare(envs, env_fns):
    expected = SyncVectorEnv(env_fns)
    assert envs.num_envs == NUM_ENVS
    for ours, theirs in zip(envs.reset(seed=3), expected.reset(seed=3)):
        same(ours, theirs)
    envs.action_space.seed(4)
    for _ in range(60):
        actions = envs.action_space.sample()
        for ours, theirs in zip(envs.step(actions), expected.step(actions)):
            same(ours, theirs)
    print("compared")
"""
THUNKS = """
def thunk(index):
    def make():
        Path(f"env {index} of {os.getpid()}").touch()
        env = gymnasium.make(POLE, max_episode_steps=5 + index, render_mode="rgb_array" if index == 0 else None)
        return gymnasium.wrappers.RecordEpisodeStatistics(env) if index == 0 else env
    return make
"""


@pytest.mark.mpi(1, 3)
def test_listed_callables_are_called_by_the_rank_of_their_env_alone_and_give_what_sync_vector_env_gives(
    job: Job, num_ranks: int
):
    code = """
with mpi_rollout.connect([thunk(index) for index in range(NUM_ENVS)]) as envs:
    if envs is not None:
        made = [path.name.split()[1] for path in Path().glob("env *")]
        assert sorted(made) == ["0", "1", "2", "3", "4"], made
        pids = {path.name.split()[3] for path in Path().glob("env *")}
        compare(envs, [thunk(index) for index in range(NUM_ENVS)])
        print(len(pids))
"""
    result = job.script(num_ranks, BEGIN + THUNKS + code)
    assert (result.code, result.out.split()) == (0, ["compared", str(num_ranks)]), result.err


@pytest.mark.mpi(2)
def test_a_callable_is_given_the_index_and_each_env_its_own_arguments(job: Job, num_ranks: int):
    code = """
def by_index(env_index, base=5):
    return gymnasium.make(POLE, max_episode_steps=base + env_index)

listed = [{"max_episode_steps": 7 + index} for index in range(NUM_ENVS)]
ways = [
    (dict(env=by_index, num_envs=NUM_ENVS, env_kwargs={"base": 7})),
    (dict(env=POLE, num_envs=NUM_ENVS, env_kwargs=listed)),
    (dict(env=(by_index,) * NUM_ENVS, num_envs=NUM_ENVS, env_kwargs=tuple({"base": 7} for _ in listed))),
    (dict(env=[partial(gymnasium.make, POLE, **kwargs) for kwargs in listed])),
    (dict(env=gymnasium.spec(POLE), num_envs=NUM_ENVS, env_kwargs=listed)),
]
for way in ways:
    with mpi_rollout.connect(**way) as envs:
        if envs is not None:
            compare(envs, [partial(gymnasium.make, POLE, **kwargs) for kwargs in listed])
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.out.split()) == (0, ["compared"] * 5), result.err


def test_what_does_not_go_together_is_refused_in_one_line(job: Job):
    code = """
make = partial(gymnasium.make, POLE)
env = make()
for way in [
    dict(), dict(env=[make] * 2, num_envs=3), dict(env=[]),
    dict(env=[make, env]), dict(env=POLE, num_envs=2, env_kwargs=[{}]), dict(env=POLE, num_envs=2, env_kwargs=3),
    dict(env=POLE, num_envs=2, env_kwargs=[{}, {}], vectorization_mode="vector_entry_point"), dict(env=4, num_envs=1),
    dict(env=gymnasium.spec(POLE), num_envs=1, vectorization_mode="envpool"),
    dict(env=[lambda: env, lambda: env]), dict(env=lambda: env, num_envs=2, num_groups=2), dict(env=POLE),
]:
    try:
        mpi_rollout.connect(**way)
    except mpi_rollout.errors.UsageError as error:
        print(error)
"""
    result = job.script(None, BEGIN + "import mpi_rollout.errors\n" + code)
    refused = result.out.splitlines()
    expected = [
        "give env: an env id, a callable that returns one env, or a list of callables, got none",
        "env must have one element for each of the 3 envs, got 2",
        "num_envs must be a whole number of at least 1, got 0",
        "envs are made by an env id or a callable, got <TimeLimit",
        "env_kwargs must have one element for each of the 2 envs, got 1",
        "env_kwargs must be a dict, or a list of one for each env, got 3",
        "env_kwargs must be the same for all envs with vector_entry_point, got some for each env; use ",
        "envs are made by an env id or a callable, got 4",
        "vectorization_mode envpool needs the id of a registered env, got CartPole-v1",
        "env 0 and env 1 are the same object; what makes envs must return a new one each time",
        "env 0 and env 1 are the same object; what makes envs must return a new one each time",
        "num_envs must be a whole number of at least 1, got None",
    ]
    assert result.code == 0 and len(refused) == len(expected), result.err + result.out
    for line, start in zip(refused, expected, strict=True):
        assert line.startswith(start), line


@pytest.mark.mpi(2)
def test_the_root_knows_the_spec_of_envs_that_the_script_registers_with_a_lambda(job: Job, num_ranks: int):
    code = """
gymnasium.register("Here-v0", entry_point=lambda **_: gymnasium.make(POLE).unwrapped, max_episode_steps=9)
with mpi_rollout.connect("Here-v0", NUM_ENVS) as envs:
    if envs is not None:
        print(envs.spec.id, envs.spec.max_episode_steps)
        compare(envs, [partial(gymnasium.make, "Here-v0")] * NUM_ENVS)
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.out.split()) == (0, ["Here-v0", "9", "compared"]), result.err


@pytest.mark.mpi(1, 2)
def test_the_list_of_envs_is_refused_with_what_works(job: Job, num_ranks: int):
    code = """
with mpi_rollout.connect(POLE, 2) as envs:
    if envs is not None:
        print(hasattr(envs, "envs"), envs.get_attr("gravity"))
        try:
            envs.get_attr("no_such_thing")
        except AttributeError as error:  # Callers ask for what may not be there.
            print(type(error).__name__)
        envs.envs
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.out) == (1, "False (9.8, 9.8)\nRankError\n")
    assert "AttributeError: the envs are on their ranks; use call(name, ...), get_attr(name)," in result.err
