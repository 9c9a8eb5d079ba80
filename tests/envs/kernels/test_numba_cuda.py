"""CUDA threads, in Numba's simulator: it must be chosen before Numba is imported, so in processes of their own."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from jobs import CLONE, job_environment
from kernel_checks import chosen_actions, same, stepped, vector_env

pytestmark = [pytest.mark.any_mpi, pytest.mark.skipif(find_spec("numba") is None, reason="pip install numba")]

MAKE = """
import gymnasium
import mpi_rollout.envs.kernels, mpi_rollout.errors
def make(num_envs=2, **kwargs):
    mode = "vector_entry_point"
    return gymnasium.make_vec("mpi_rollout/CartPoleCUDA-v0", num_envs, vectorization_mode=mode, **kwargs)
def refusal(**kwargs):
    try:
        make(**kwargs)
    except mpi_rollout.errors.UsageError as error:
        return str(error)
"""


def printed(program: str, is_simulated: bool = True) -> list[str]:
    environment = job_environment(NUMBA_ENABLE_CUDASIM=str(int(is_simulated)))
    command = [sys.executable, "-c", MAKE + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_threads_do_all_that_the_other_backends_do():
    """Each kernel, from single steps to fragments and masks; the simulator takes seconds for each test."""
    environment = job_environment(NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/envs/kernels/test_cartpole.py"]
    command += ["-k", "single_envs or many_steps or slices or left_out or mask or taken_again"]
    done = subprocess.run(command, cwd=CLONE, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and " passed" in done.stdout and "skipped" not in done.stdout, done.stdout


def test_a_device_has_a_number_and_gives_only_what_is_read():
    program = """
print(make(device=0).reset()[0].shape)
for device in (1, "cuda"):
    print(refusal(device=device))
import numpy as np
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from mpi_rollout.envs.rollout import RolloutColumns
envs, copied = make(40), []
envs.reset()
copy_to_host = FakeCUDAArray.copy_to_host
def counting(array, *args, **kwargs):
    copied.append(array.shape)
    return copy_to_host(array, *args, **kwargs)
FakeCUDAArray.copy_to_host = counting
rewards = np.zeros((30, 40))
envs.rollout(np.ones((30, 40), int), RolloutColumns())
print(copied)
envs.rollout(np.ones((30, 40), int), RolloutColumns(rewards=rewards))
print(copied, rewards.sum() > 0)"""
    refusals = [f"device of CartPole must be an integer from 0 to 0, got {device}" for device in ("1", "'cuda'")]
    assert printed(program) == ["(2, 4)", *refusals, "[]", "[(30, 40)] True"]


def has_gpu() -> bool:
    from numba import cuda

    return bool(cuda.is_available())


def test_without_a_device_the_ways_out_are_named():
    if has_gpu():
        pytest.skip("there is a CUDA device")
    [line] = printed("print(refusal())", is_simulated=False)
    assert line.startswith(
        "CartPole on cuda needs a CUDA device, and there is none that Numba can use; use mpi_rollout/C"
    )
    assert line.endswith("-v0, or Numba's simulator: NUMBA_ENABLE_CUDASIM=1")


def test_a_gpu_gives_the_same_to_rounding():
    if not has_gpu():
        pytest.skip("there is no CUDA device")
    actions = chosen_actions(15, 1000)
    envs, reference = vector_env("CUDA", 1000), vector_env("Numba", 1000)
    envs.reset(), reference.reset()
    assert same(stepped(envs, actions), stepped(reference, actions), tolerance=1e-6)
