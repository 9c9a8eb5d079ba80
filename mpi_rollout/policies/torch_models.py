"""Policies of torch: TorchScript (`torch.jit.save`) and exported programs (`torch.export.save`).

A network is called with one tensor, or with a dict of tensors by their paths where the envs' observations are several
arrays.  It returns a tensor, or a tuple of tensors; `networks` says what they mean.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from mpi_rollout.core.spaces import Space, leaves
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.networks import Head, Input, Inputs, match_inputs, model_of
from mpi_rollout.policies.pt2_program import Program
from mpi_rollout.policies.untrusted import reading
from mpi_rollout.policies.weights import numpy_dtype

Argument: TypeAlias = torch.Tensor | dict[str, torch.Tensor]  # By path, where there are several.
BATCH = "give its first axis a dynamic size (dynamic_shapes of torch.export.export)"


def load(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Load a network."""
    head = Head(action_space, source.mode)
    with warnings.catch_warnings(), reading():
        warnings.simplefilter("ignore")  # TorchScript is deprecated: who has such a file cannot act on that here.
        if source.kind == "torchscript":
            assert source.is_trusted, "sources.read_source refuses it: it is code"
            network = Script(torch.jit.load(io.BytesIO(source.content), map_location="cpu").eval())
            return model_of(partial(_call, network), network.inputs(observation_space), head, network)
        program, taken = _loaded(source.content) if source.is_trusted else _checked(source.content)
    return model_of(partial(_call, program), match_inputs(taken, observation_space, BATCH), head, program)


def _call(network: Callable[[Argument], Any], arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    tensors = {path: torch.from_numpy(array) for path, array in arrays.items()}
    # Unoptimized: else TorchScript compiles another graph after two calls, which may round otherwise.
    with calling(), torch.jit.optimized_execution(False):
        returned = network(tensors[""] if tensors.keys() == {""} else tensors)
    outputs = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not outputs or not all(isinstance(output, torch.Tensor) for output in outputs):
        raise ActionError(f"must return a tensor or a tuple of tensors, returns {type(returned).__name__}")
    return [output.detach().numpy() for output in outputs]


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


class Script:
    """TorchScript, with its parameters as constants until it gets others: a small network's call takes a fifth less."""

    def __init__(self, module: torch.jit.ScriptModule):
        self._module = self._call = module
        with suppress(RuntimeError):  # Not all code can be frozen.
            self._call = torch.jit.freeze(module, optimize_numerics=False)  # Optimized, it would round otherwise.

    def __call__(self, argument: Argument) -> object:
        return self._call(argument)

    def inputs(self, observation_space: Space) -> Inputs:
        """Return all observations, floats in the dtype of the parameters: a script does not say what it takes."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        own = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point]
        dtype = numpy_dtype(own[0]) if own else np.dtype(np.float32)
        return {
            leaf.path: (leaf, dtype if leaf.dtype.kind == "f" else leaf.dtype) for leaf in leaves(observation_space)
        }

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._module.state_dict())

    def load_state_dict(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._module.load_state_dict(weights)
        self._call = self._module


def _checked(content: bytes) -> tuple[Program, dict[str, Input]]:
    program = Program(content)
    return program, program.inputs


def _loaded(content: bytes) -> tuple[torch.nn.Module, dict[str, Input]]:
    """Load a program as torch does, which executes code of its file."""
    logger = logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # What it says of a damaged file is in the error too.
    try:
        program = torch.export.load(io.BytesIO(content))
    finally:
        logger.disabled = was_disabled
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    first = program.call_spec.in_spec.children_specs[0].children_specs[0]
    paths = first.context if first.type is dict else [""]
    inputs = {}
    for path, name in zip(paths, program.graph_signature.user_inputs, strict=True):
        shape = tuple(size if isinstance(size, int) else None for size in values[name].shape)
        inputs[path] = Input(numpy_dtype(values[name].dtype), shape)
    return program.module(), inputs
