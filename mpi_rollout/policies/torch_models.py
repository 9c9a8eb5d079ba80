"""Policies of torch: TorchScript (`torch.jit.save`) and exported programs (`torch.export.save`).

A network is called with one tensor, or with a dict of tensors by their paths where the envs' observations are several
arrays.  It returns a tensor, or a tuple of tensors; `heads` says what they mean.
"""

import io
import logging
import re
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mpi_rollout.core.spaces import Leaf, Space, leaves
from mpi_rollout.errors import ActionError, UsageError, first_line
from mpi_rollout.policies.heads import Head
from mpi_rollout.policies.inputs import TRIAL_ROWS, by_path, check_dtype, zeros
from mpi_rollout.policies.model import TRUST_IT, PolicySource
from mpi_rollout.policies.pt2_check import check_program
from mpi_rollout.policies.torch_calls import TorchParameters, calling

# Operations of TorchScript that touch files.
_FILE_CALLS = re.compile(rb"\b(save|load|from_file)\s*\(")
BATCH = "give its first axis a dynamic size (dynamic_shapes of torch.export.export)"


class TorchModel(TorchParameters):
    """A network of torch.

    Parameters
    ----------
    network
        Takes a tensor or a dict of tensors.
    dtypes
        The dtype that it wants for each leaf of the observations.
    """

    def __init__(self, network: Callable[..., Any], observation_space: Space, dtypes: list[np.dtype], head: Head):
        self._network, self._head = _frozen(network), head
        self.module = network
        self._leaves, self._dtypes = leaves(observation_space), dtypes
        self.num_uniforms = head.num_uniforms

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        super().load(parameters)
        self._network = self.module

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        return self.act_by_path(by_path(self._leaves, observations), env_indices, uniforms)

    def act_by_path(self, arrays: dict[str, np.ndarray], env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Return the actions for observations by path."""
        tensors = {
            path: torch.from_numpy(np.ascontiguousarray(array, dtype))
            for (path, array), dtype in zip(arrays.items(), self._dtypes, strict=True)
        }
        argument = tensors[""] if tensors.keys() == {""} else tensors
        # Unoptimized: else TorchScript compiles another graph after two calls, which may round otherwise.
        with calling(), torch.jit.optimized_execution(False):
            returned = self._network(argument)
        return self._head(_arrays(returned), env_indices, uniforms)


def _frozen(network: Callable[..., Any]) -> Callable[..., Any]:
    """Return TorchScript with its parameters as constants, which saves a fifth of a call of a small network."""
    if not isinstance(network, torch.jit.ScriptModule):
        return network
    try:
        return torch.jit.freeze(network, optimize_numerics=False)  # Optimized, it would round otherwise.
    except RuntimeError:  # Not all code can be frozen.
        return network


def _arrays(returned: object) -> list[np.ndarray]:
    outputs: list[Any] = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not outputs or not all(isinstance(output, torch.Tensor) for output in outputs):
        raise ActionError(f"must return a tensor or a tuple of tensors, returns {type(returned).__name__}")
    return [output.detach().numpy() for output in outputs]


def load(source: PolicySource, observation_space: Space, action_space: Space) -> TorchModel:
    """Load a network and try it on zeros.

    Raises
    ------
    UsageError, ActionError
        It is damaged, does not fit the spaces, or has code that only a trusted file may have.
    """
    head = Head(action_space, source.mode)
    read = {"torchscript": _torchscript, "pt2": _exported}[source.kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated: who has such a file cannot act on that here.
        network, dtypes = read(source, leaves(observation_space))
        model = TorchModel(network, observation_space, dtypes, head)
        for rows in TRIAL_ROWS:
            _try(model, observation_space, rows)
    return model


def _try(model: TorchModel, space: Space, rows: int) -> None:
    try:
        model.act_by_path(zeros(space, rows), np.arange(rows), np.zeros((rows, model.num_uniforms)))
    except ActionError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{leaf.dtype} {(rows, *leaf.shape)}" for leaf in leaves(space))
        raise UsageError(f"fails on observations {shapes}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what is wrong; TorchScript says so in the last line of a traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines and "TorchScript" in str(error) else first_line(error)


def _torchscript(source: PolicySource, observations: tuple[Leaf, ...]) -> tuple[Callable[..., Any], list[np.dtype]]:
    if not source.is_trusted:
        _check_script(source.content)
    try:
        network = torch.jit.load(io.BytesIO(source.content), map_location="cpu").eval()
    except Exception as error:
        raise UsageError(
            f"the file is damaged, or torch {torch.__version__} cannot load it: {_reason(error)}"
        ) from error
    tensors = [*network.parameters(), *network.buffers()]
    own = [tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point]
    dtype = _numpy(own[0]) if own else np.dtype(np.float32)
    return network, [dtype if leaf.dtype.kind == "f" else leaf.dtype for leaf in observations]


def _check_script(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            if name.endswith(".py") and (match := _FILE_CALLS.search(archive.read(name))):
                raise UsageError(f"its code calls {match[1].decode()}(), which may write or read files; {TRUST_IT}")


def _exported(source: PolicySource, observations: tuple[Leaf, ...]) -> tuple[Callable[..., Any], list[np.dtype]]:
    if not source.is_trusted:
        check_program(source.content)
    logger = logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # What it says of a damaged file is in the error too.
    try:
        program = torch.export.load(io.BytesIO(source.content))
        network = program.module()
    except Exception as error:
        raise UsageError(
            f"the file is damaged, or torch {torch.__version__} cannot load it: {_reason(error)}"
        ) from error
    finally:
        logger.disabled = was_disabled
    inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    values = [node.meta["val"] for node in inputs]
    if len(values) != len(observations):
        raise UsageError(f"takes {len(values)} arrays, the envs' observations are {len(observations)}")
    if len(values) == 1:
        _check_input(values[0], observations[0])
        return network, [_numpy(values[0].dtype)]
    return network, [leaf.dtype for leaf in observations]


def _check_input(value: torch.Tensor, leaf: Leaf) -> None:
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    if len(shape) != len(leaf.shape) + 1 or any(
        size not in (None, own) for size, own in zip(shape[1:], leaf.shape, strict=True)
    ):
        wanted = [size or "any" for size in shape]
        raise UsageError(f"takes observations of shape {wanted}, the envs' are {['any', *leaf.shape]}")
    if shape[0] is not None:
        raise UsageError(f"takes batches of {shape[0]} only; {BATCH}")
    check_dtype(leaf, _numpy(value.dtype))


def _numpy(dtype: torch.dtype) -> np.dtype:
    if dtype == torch.bfloat16:  # NumPy has none; torch converts.
        return np.dtype(np.float32)
    return torch.empty(0, dtype=dtype).numpy().dtype
