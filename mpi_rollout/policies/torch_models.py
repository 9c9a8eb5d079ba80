"""Policies of torch: TorchScript (`torch.jit.save`) and exported programs (`torch.export.save`).

A network is called with one tensor, or with a dict of tensors by their paths where the envs' observations are several
arrays.  It returns a tensor, or a tuple of tensors; `networks` says what they mean.
"""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module

import numpy as np
import torch

from mpi_rollout.core.spaces import Space, leaves
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.devices import CPU, moving_to
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.networks import Head, Inputs, model_of


def load(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Load a network."""
    head = Head(action_space, source.mode)
    assert source.is_trusted, "sources.read_source refuses it: it is code"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated: who has such a file cannot act on that here.
        network = (_script if source.kind == "torchscript" else _exported)(source.content, source.device)
    return model_of(partial(_call, network, source.device), _inputs(network, observation_space), head, network)


def _script(content: bytes, device: str) -> torch.nn.Module:
    network = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
    with moving_to(device):
        return network.to(device)


def _exported(content: bytes, device: str) -> torch.nn.Module:
    """Load an exported program."""
    logger = logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # What it says of a damaged file is in the error too.
    try:
        program = torch.export.load(io.BytesIO(content))
        if device != CPU:  # The graph may name the device on which it was exported.
            with moving_to(device):
                program = import_module("torch.export.passes").move_to_device_pass(program, device)
        return program.module()
    finally:
        logger.disabled = was_disabled


def _call(network: torch.nn.Module, device: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    tensors = {path: torch.from_numpy(array).to(device) for path, array in arrays.items()}
    # Unoptimized: else TorchScript compiles another graph after two calls, which may round otherwise.
    with calling(), torch.jit.optimized_execution(False):
        returned = network(tensors[""] if tensors.keys() == {""} else tensors)
    outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not outputs or not all(isinstance(output, torch.Tensor) for output in outputs):
        raise ActionError(f"must return a tensor or a tuple of tensors, returns {type(returned).__name__}")
    return [output.numpy(force=True) for output in outputs]


@contextmanager
def calling() -> Iterator[None]:
    """Call a network with one thread and without gradients; afterwards the process has its threads again.

    One thread, because each core has a rank, and because two threads may give a row other bits than one.  It is
    `no_grad`, not `inference_mode`, in which a loaded TorchScript module fails after some calls.
    """
    num_threads = torch.get_num_threads()
    if num_threads != 1:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        if num_threads != 1:
            torch.set_num_threads(num_threads)


def _inputs(module: torch.nn.Module, observation_space: Space) -> Inputs:
    """Return all observations, floats in the dtype of the parameters: a script does not say what it takes."""
    tensors = [*module.parameters(), *module.buffers()]
    own = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point]
    dtype = _numpy_dtype(own[0] if own else torch.float32)
    return {leaf.path: (leaf, dtype if leaf.dtype.kind == "f" else leaf.dtype) for leaf in leaves(observation_space)}


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return NumPy's dtype; of bfloat16, which it does not have, the one that torch converts from."""
    return torch.empty(0, dtype=torch.float32 if dtype == torch.bfloat16 else dtype).numpy().dtype
