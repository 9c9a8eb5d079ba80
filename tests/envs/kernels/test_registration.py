"""How Gymnasium finds the envs, and what that loads."""

import subprocess
import sys

import gymnasium
import pytest
from jobs import job_environment

from mpi_rollout.text import pip_install

pytestmark = pytest.mark.any_mpi

IDS = ("mpi_rollout/CartPoleNumba-v0", "mpi_rollout/CartPoleTorch-v0", "mpi_rollout/CartPoleCUDA-v0")


def output_of(program: str, **variables: str) -> str:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=job_environment(**variables), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_packages_are_loaded_only_by_the_env_that_needs_them():
    program = f"""
import sys, gymnasium
import mpi_rollout.envs.env_maker
for env_id in {IDS}:
    gymnasium.spec(env_id)
    gymnasium.make(env_id, device="cuda").reset()
print([name for name in ("numba", "llvmlite", "torch") if name in sys.modules])"""
    assert output_of(program) == "[]"


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    program = """
import sys
from mpi_rollout.text import pip_install
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.errors import UsageError
for name, package in (("Numba", "numba"), ("Torch", "torch"), ("CUDA", "numba")):
    sys.modules[package] = None
    try:
        EnvMaker(f"mpi_rollout/CartPole{name}-v0", vectorization_mode="vector_entry_point").native(range(2))
    except UsageError as error:
        print(error)"""
    lines = output_of(program).splitlines()
    for line, extra in zip(lines, ("numba", "torch", "cuda"), strict=True):
        assert line.startswith(f"CartPole on {extra} needs a package (")
        assert line.endswith(f"; {pip_install(f'[{extra}]')}")


@pytest.mark.parametrize("env_id", IDS)
def test_the_single_env_comes_with_the_time_limit(env_id: str):
    env = gymnasium.make(f"mpi_rollout.envs.kernels:{env_id}")
    assert env.spec is not None and env.spec.max_episode_steps == 500 and not env.spec.kwargs
    assert env.reset()[0].shape == (4,)
