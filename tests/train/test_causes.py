"""What an env raises reaches the trainer with its class, in a short traceback that ends with the cause."""

import os

import pytest
from jobs import Job

pytestmark = pytest.mark.any_mpi
HOST = os.uname().nodename
CODE = """
import sys
import traceback

import gymnasium
import mpi_rollout
from envs import Counting
from failing_envs import RANK
from mpi4py import MPI

LAST = MPI.COMM_WORLD.size - 1


class Mine(Exception):
    def __init__(self, what, code):
        super().__init__(what)
        self.code = code


def licence():
    if RANK == LAST:
        raise Mine("no licence", 3)
    return Counting()


def old():
    return gymnasium.make("FrozenLake-v0") if RANK == LAST else Counting()


class Stepping(Counting):
    def step(self, action):
        if RANK == LAST:
            raise Mine("it has diverged", 4)
        return super().step(action)


def attempt(kind, make):
    try:
        with mpi_rollout.connect(make, 3) as envs:
            if envs is not None:
                envs.reset(seed=0)
                envs.step(envs.action_space.sample())
    except SystemExit as error:  # Of the other ranks.
        assert RANK and error.code, error.code
    except kind as error:
        assert isinstance(error, mpi_rollout.RolloutError) and isinstance(error.__cause__, kind)
        assert (LAST == 0) == (type(error.__cause__) is kind), type(error.__cause__)
        shown = "".join(traceback.format_exception(error)).splitlines()
        print(sum("/mpi_rollout/" in line and "/tests/" not in line for line in shown), shown[-1])
        print(sum("raise Mine(" in line or "raise error.DeprecatedEnv" in line for line in shown))


"""


@pytest.mark.mpi(1, 3)
@pytest.mark.parametrize(
    ("kind", "make", "told"),
    [
        ("Mine", "licence", "mpi_rollout.errors.EnvError: {}env {} cannot be made: Mine: no licence"),
        ("gymnasium.error.DeprecatedEnv", "old", "mpi_rollout.errors.UsageError: {}env __main__:old: Environment"),
    ],
)
def test_what_a_factory_raises_keeps_its_class(job: Job, num_ranks: int, kind: str, make: str, told: str):
    result = job.script(num_ranks, f"{CODE}attempt({kind}, {make})\n")
    assert result.code == 0, result.err
    first, second = result.out.splitlines()
    last = num_ranks - 1
    place = f"rank {last} ({HOST}): " if num_ranks > 1 or kind == "Mine" else ""
    assert first.startswith(f"1 {told.format(place, last)}") and second == "1"


@pytest.mark.mpi(1, 3)
def test_what_a_step_raises_keeps_its_class(job: Job, num_ranks: int):
    result = job.script(num_ranks, f"{CODE}attempt(Mine, Stepping)\n")
    assert result.code == 0, result.err
    first, second = result.out.splitlines()
    assert " mpi_rollout.errors.RankError: rank " in first and second == "1"
    assert first.endswith(f"env {num_ranks - 1}, step 0 of its episode: Mine: it has diverged")
