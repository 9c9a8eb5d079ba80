"""Policies in ONNX files, run by ONNX Runtime on one thread.  No code of a file is executed."""

from typing import Any

import numpy as np
import onnxruntime

from mpi_rollout.core.spaces import Leaf, Space, leaves
from mpi_rollout.errors import ActionError, UsageError, first_line
from mpi_rollout.policies.heads import WAY_OUT, Head
from mpi_rollout.policies.inputs import TRIAL_ROWS, check_dtype, zeros
from mpi_rollout.policies.model import Model, PolicySource

# ONNX Runtime's names of the types that NumPy has.
DTYPES = {
    f"tensor({name})": np.dtype(dtype)
    for name, dtype in {
        "float16": "float16", "float": "float32", "double": "float64", "bool": "bool",
        "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
        "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    }.items()
}  # fmt: skip
EXPORT = "export it with a dynamic first axis (dynamic_shapes or dynamic_axes of torch.onnx.export)"


class ONNXModel(Model):
    """A network that takes an input for each leaf of the observations: the only one, or by the leaf's path."""

    def __init__(self, session: onnxruntime.InferenceSession, observation_space: Space, head: Head):
        self._session, self._head = session, head
        self._inputs = _inputs(session, leaves(observation_space))
        self._outputs = _outputs(session, head)
        self.num_uniforms = head.num_uniforms

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        arrays = {
            name: np.ascontiguousarray(leaf.of(observations), dtype) for name, (leaf, dtype) in self._inputs.items()
        }
        return self._head(self._session.run(self._outputs, arrays), env_indices, uniforms)

    def try_rows(self, arrays: dict[str, np.ndarray], rows: int) -> None:
        """Call it with arrays by path."""
        named = {name: arrays[leaf.path].astype(dtype) for name, (leaf, dtype) in self._inputs.items()}
        outputs = self._session.run(self._outputs, named)
        self._head(outputs, np.arange(rows), np.zeros((rows, self.num_uniforms)))


def load(source: PolicySource, observation_space: Space, action_space: Space) -> ONNXModel:
    """Load a network and try it on zeros.

    Raises
    ------
    UsageError, ActionError
        It is damaged, or does not fit the spaces.
    """
    head = Head(action_space, source.mode)
    try:
        session = onnxruntime.InferenceSession(  # Without another attempt, which it would tell on stdout.
            source.content, _options(), providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:  # ONNX Runtime's are of many types.
        raise UsageError(f"the file is damaged, or ONNX Runtime cannot run it: {first_line(error)}") from error
    model = ONNXModel(session, observation_space, head)
    for rows in TRIAL_ROWS:
        arrays = zeros(observation_space, rows)
        try:
            model.try_rows(arrays, rows)
        except ActionError:
            raise
        except Exception as error:
            raise UsageError(f"fails on a batch of {rows} observations ({first_line(error)}); {EXPORT}") from error
    return model


def _options() -> onnxruntime.SessionOptions:
    """Return options with which a session starts no threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # Warnings about the graph are for who made it, and errors are raised as well.
    return options


def _inputs(session: onnxruntime.InferenceSession, observations: tuple[Leaf, ...]) -> dict[str, tuple[Leaf, np.dtype]]:
    """Return the leaf and the dtype of each input."""
    inputs = {entry.name: entry for entry in session.get_inputs()}
    if len(observations) == 1 and len(inputs) == 1:
        named = dict(zip(inputs, observations, strict=True))
    else:
        named = {leaf.path: leaf for leaf in observations}
    if named.keys() != inputs.keys():
        wanted = ", ".join(repr(leaf.path) for leaf in observations)
        raise UsageError(
            f"has the inputs {', '.join(map(repr, inputs))}, the envs' observations "
            + (f"are {wanted}: name the inputs so" if len(observations) > 1 else "are one array")
        )
    return {name: (leaf, _dtype(inputs[name], leaf)) for name, leaf in named.items()}


def _outputs(session: onnxruntime.InferenceSession, head: Head) -> list[str]:
    """Return the names of the outputs that are needed.  A second one is known by its name, or it may be a value."""
    names = [output.name for output in session.get_outputs()]
    if head.num_outputs == 2 and not (len(names) == 2 and "std" in names[1].lower()):
        raise UsageError(f"must have the outputs 'mean' and 'log_std' to draw from, has {names}; or {WAY_OUT}")
    return names[: head.num_outputs]


def _dtype(entry: Any, leaf: Leaf) -> np.dtype:
    """Return the dtype that an input wants, which fits a leaf as its shape does."""
    name = f"input {entry.name!r}"
    dtype = DTYPES.get(entry.type)
    if dtype is None:
        raise UsageError(f"{name} is {entry.type}, which no observations are")
    shape = list(entry.shape)
    fits = len(shape) == len(leaf.shape) + 1 and all(
        not isinstance(size, int) or size == own for size, own in zip(shape[1:], leaf.shape, strict=True)
    )
    if not fits:
        raise UsageError(f"{name} has the shape {shape}, the envs' observations have {['batch', *leaf.shape]}")
    if isinstance(shape[0], int):
        raise UsageError(f"{name} takes batches of {shape[0]} only; {EXPORT}")
    check_dtype(leaf, dtype)
    return dtype
