"""A file must not choose code that runs: what makes envs is named on the command line, or is Gymnasium's own."""

import json
from pathlib import Path

import pytest
from jobs import Job, Start

from mpi_rollout.commands.consent import is_built_in

pytestmark = pytest.mark.any_mpi

MARKING = """
import pathlib
import gymnasium

pathlib.Path("was imported").touch()


def make(length=500):
    return gymnasium.make("CartPole-v1", max_episode_steps=length)


gymnasium.register("Pole-v0", entry_point=make)
"""
SIZES = ("--num-envs", "2", "--num-steps", "30", "--progress", "none")


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [("CartPole-v1", True), ("CartPole", True), ("phys2d/CartPole-v1", True), ("HumanoidStandup-v5", True),
     ("marking:CartPole-v1", False), ("os:CartPole-v1", False), ("Pole-v0", False), ("", False), ("a:b:c", False),
     ("GymV26Environment-v0", False)],
)  # fmt: skip
def test_an_id_is_built_in_if_gymnasium_itself_has_its_code(env_id: str, expected: bool):
    assert is_built_in(env_id) is expected


@pytest.mark.parametrize(
    "env",
    [
        ("--env-factory", "marking:make", "--env-kwargs", '{"length": 7}'),
        ("--env", "marking:Pole-v0"),
    ],
    ids=["factory", "module"],
)
def test_envs_that_a_file_names_are_made_only_if_the_command_line_names_them_too(job: Job, env: tuple[str, ...]):
    (job.folder / "marking.py").write_text(MARKING)
    path = job.collect(None, *env, *SIZES)
    mark = Path(job.folder / "was imported")
    mark.unlink()
    verify = ("verify", path, "--replay", "3")
    others = [("--env-factory", "marking:made"), (*env, "--env-kwargs", '{"length": 8}'), ("--env", "CartPole-v1")]
    alone, *different = job.series([Start((*verify, *more)) for more in [(), *others]])
    assert (alone.code, alone.num_tracebacks, mark.exists()) == (64, 0, False)
    assert " ".join(env[:2]) in alone.err and "add that if it is what you expect, or --trust" in alone.err
    for result in different:
        assert (result.code, result.num_tracebacks) == (64, 0) and " is of " in result.err
    for more in (env, ("--trust",)):
        result = job(None, *verify, *more)
        assert result.code == 0 and "every byte the same" in result.out, result.err


def test_what_gymnasium_brings_needs_no_word(job: Job):
    path = job.collect(None, "--env", "CartPole-v1", "--env-kwargs", '{"sutton_barto_reward": true}', *SIZES)
    verify = ("verify", path, "--replay", "3")
    again = ("--env", "CartPole-v1", "--env-kwargs", '{"sutton_barto_reward": true}')
    alone, same, other = job.series([Start((*verify, *more)) for more in ((), again, ("--env", "CartPole-v1"))])
    assert (alone.code, same.code, other.code) == (0, 0, 64), alone.err + same.err


@pytest.mark.parametrize("kwargs", [{"map_name": "4x4"}, [{"desc": ["SG"]}, {"desc": ["SG"]}]], ids=["text", "lists"])
def test_arguments_that_are_more_than_numbers_need_a_word(job: Job, kwargs: object):
    """They can name a file that is then read, open a window, or take all memory."""
    env = ("--env", "FrozenLake-v1", "--env-kwargs", json.dumps(kwargs))
    verify = ("verify", job.collect(None, *env, *SIZES), "--replay", "3")
    alone, named = job.series([Start(verify), Start((*verify, *env))])
    assert alone.code == 64 and "which a file must not choose by itself" in alone.err
    assert named.code == 0, named.err


def test_a_run_is_continued_with_the_envs_of_the_command_line_or_not_at_all(job: Job):
    """The file names a factory that must not be imported, even to be refused."""
    (job.folder / "marking.py").write_text(MARKING)
    stop = json.dumps({"after": 12})
    assert job(None, "--env-factory", "envs:Failing", "--env-kwargs", stop, *SIZES, "--out", "run.h5").code == 70
    before = (job.folder / "run.h5.part").read_bytes()
    for factory in ("marking:make", "envs:Counting"):
        result = job(None, "--env-factory", factory, *SIZES, "--out", "run.h5")
        assert result.code == 64 and '--env-factory was "envs:Failing"' in result.err
    assert (job.folder / "run.h5.part").read_bytes() == before
