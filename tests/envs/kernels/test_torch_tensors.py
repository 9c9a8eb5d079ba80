"""What only torch's backend has."""

from importlib.util import find_spec

import numpy as np
import pytest
from kernel_checks import chosen_actions, same, stepped, vector_env

from mpi_rollout.errors import UsageError

# Importing torch takes long: not while tests are collected.
pytestmark = [pytest.mark.any_mpi, pytest.mark.skipif(find_spec("torch") is None, reason="pip install torch")]


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_without_a_cuda_device_the_way_out_is_named(device: str):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    problem = f"device '{device}' of CartPole on torch: there is no CUDA device; use device 'cpu'"
    with pytest.raises(UsageError, match=f"^{problem}$"):
        vector_env("Torch", 2, device=device)


def test_a_device_that_is_none_is_named():
    with pytest.raises(UsageError, match=r"device 'gpu' of CartPole on torch: .*; use device 'cpu'"):
        vector_env("Torch", 2, device="gpu")


def test_the_number_of_threads_is_left_alone():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        envs = vector_env("Torch", 4)
        envs.reset()
        stepped(envs, np.zeros((20, 4), int))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_cuda_device_gives_the_same_to_rounding():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    actions, envs, reference = chosen_actions(15, 64), vector_env("Torch", 64, device="cuda"), vector_env("Torch", 64)
    envs.reset(), reference.reset()
    assert same(stepped(envs, actions), stepped(reference, actions), tolerance=1e-6)
