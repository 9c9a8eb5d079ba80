"""Envs of dm_env's API: wrapped by themselves, with seeds that reach them; and dm_control's tasks by their ids."""

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from jobs import Job, assert_same_bytes, datasets
from noticing import note_only, noted

from mpi_rollout.envs import dm_wrapper
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.errors import UsageError
from mpi_rollout.ranks.set_up import check_instances
from mpi_rollout.text import pip_install

pytest.importorskip("shimmy")
dm_envs = pytest.importorskip("dm_envs")  # It needs dm_env.

pytestmark = pytest.mark.any_mpi
TASKS = {"cartpole-balance": "balance", "reacher-easy": "reach", "walker-walk": "walker"}
SIZES = ("--num-envs", "3", "--num-steps", "40", "--seed", "5", "--progress", "none")


def rows_of(env: Any, seed: int, num_steps: int = 3) -> list[float]:
    """The numbers that an env draws in an episode."""
    observations = [env.reset(seed=seed)[0]] + [env.step(np.int64(1))[0] for _ in range(num_steps)]
    return [float(observation["place"][1]) for observation in observations]


@pytest.mark.parametrize("make", [dm_envs.walk, dm_envs.modern, dm_envs.WithSeed, dm_envs.hidden])
def test_a_seed_reaches_the_env_wherever_its_generator_is(make: Any):
    first, second = EnvMaker(make)(), EnvMaker(make)()
    first.reset(seed=1)
    assert rows_of(first, 7) == rows_of(second, 7) != rows_of(second, 8)


def test_a_seed_is_that_of_the_generator_itself():
    expected = np.random.RandomState(7).random_sample(4).tolist()
    assert rows_of(EnvMaker(dm_envs.walk)(), 7) == expected


def test_several_generators_draw_numbers_of_their_own():
    env = dm_envs.walk()
    env.noise = np.random.RandomState()
    assert dm_wrapper.reseed(env, 7) and env.noise.random_sample() != env.draw()


def test_an_env_that_cannot_be_seeded_is_stepped_with_one_notice():
    env = EnvMaker(dm_envs.Unseeded)()
    note_only()
    for seed in range(3):
        env.reset(seed=seed)
    assert [text.partition(";")[0] for text in noted()] == [
        "dm_envs:Unseeded: seeds do not reach this dm_env.Environment"
    ]


def test_ends_are_terminations_and_truncations_by_their_discounts():
    env = EnvMaker(dm_envs.walk)()
    ends = set()
    for seed in range(8):
        env.reset(seed=seed)
        terminated = truncated = False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, info = env.step(np.int64(2))
        assert info["timestep.discount"] == float(truncated)
        ends.add((observation["place"][0], terminated, truncated, bool(reward)))
    assert ends == {(3, False, True, True), (5, True, False, False)}


def test_attributes_of_the_env_are_read_through_the_wrapper():
    envs = make_slice(EnvMaker(dm_envs.walk), range(2), seed=1)
    envs.reset()
    assert all(0 <= drawn < 1 for drawn in envs.call("drawn"))
    with pytest.raises(AttributeError):
        envs.call("nothing_such")


def test_the_same_env_twice_is_refused():
    with pytest.raises(UsageError, match="env 0 and env 1 are the same object"):
        check_instances([(range(2), make_slice(EnvMaker(dm_envs.same), range(2)))])


def test_what_has_no_space_is_refused_in_one_line():
    with pytest.raises(UsageError, match=r"dm_envs:Listed is a dm_env.Environment with a spec that shimmy makes no sp"):
        EnvMaker(dm_envs.Listed)()


def test_without_shimmy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "shimmy.utils.dm_env", None)
    with pytest.raises(UsageError, match=f"^dm_envs:walk is a dm_env.*; {re.escape(pip_install('[dm]'))}$"):
        EnvMaker(dm_envs.walk)()


def test_a_mujoco_that_dm_control_does_not_know_is_named():
    pytest.importorskip("dm_control")
    pytest.importorskip("mujoco")
    words = dm_wrapper.of_unknown_mujoco(AttributeError("'MjModel' object has no attribute 'flex_vertedge'"))
    assert "does not know MuJoCo " in words and words.endswith(pip_install("[dm]"))
    assert dm_wrapper.of_unknown_mujoco(AttributeError("'Walk' object has no attribute 'drawn'")) == ""


def test_the_data_do_not_depend_on_the_number_of_ranks_and_are_replayed(job: Job):
    env = ("--env-factory", "dm_envs:modern")
    first, *others = (datasets(job.collect(number, *env, *SIZES, out=f"{number}.h5")) for number in (None, 2, 3))
    for other in others:
        assert_same_bytes(first, other)
    result = job(None, "verify", "2.h5", "--replay", "100", *env)
    assert result.code == 0, result.err


# --- dm_control


@cache
def does_dm_control_work() -> bool:
    """Its last version does not know MuJoCo 4."""
    try:
        dm_envs.suite("cartpole", "balance")
    except (ImportError, AttributeError):
        return False
    return True


@pytest.fixture
def tasks() -> None:
    if not does_dm_control_work():
        pytest.skip("pip install 'mpi_rollout[dm]'")


def arguments_of(task: str, way: str) -> tuple[str, ...]:
    """The same task by shimmy's id and by a factory, with episodes of a few steps."""
    domain, name = task.split("-")
    limit = {"time_limit": 0.2}  # Seconds: 8 to 20 steps.
    if way == "id":
        return "--env", f"dm_control/{task}-v0", "--env-kwargs", json.dumps({"task_kwargs": limit})
    kwargs = json.dumps({"domain": domain, "task": name} | limit)
    return "--env-factory", "dm_envs:suite", "--env-kwargs", kwargs


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("task", TASKS)
def test_a_task_gives_the_same_bytes_on_any_number_of_ranks_by_its_id_and_by_a_factory(job: Job, task: str):
    starts = [(None, "factory"), (2, "factory"), (3, "id")]
    first, *others = (
        datasets(job.collect(number, *arguments_of(task, way), *SIZES, out=f"{number}{way}.h5"))
        for number, way in starts
    )
    assert len(first["/episodes"]) > 3 and first["/episodes"]["truncated"].any()
    for other in others:
        assert_same_bytes(first, other)
    result = job(None, "verify", "3id.h5", "--replay", "100", *arguments_of(task, "id"))
    assert result.code == 0, result.err


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(("task", "policy"), TASKS.items())
def test_a_task_that_was_interrupted_goes_on_to_the_same(job: Job, task: str, policy: str):
    arguments = (*arguments_of(task, "id"), "--policy", f"dm_envs:{policy}", *SIZES)
    whole = datasets(job.collect(None, *arguments, out="whole.h5"))
    assert job(2, *arguments, "--out", "run.h5", STOP_AT="raise:23").code == 70
    assert_same_bytes(whole, datasets(job.collect(3, *arguments, out="run.h5")))
