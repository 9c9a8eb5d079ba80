"""Policies in ONNX files, run by ONNX Runtime on one thread, in bounded memory."""

from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime

from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import UsageError
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.networks import WAY_OUT, Head, Input, match_inputs, model_of
from mpi_rollout.policies.untrusted import MOST_BYTES
from mpi_rollout.text import first_line

EXPORT = "export it with a dynamic first axis (dynamic_shapes or dynamic_axes of torch.onnx.export)"
_NAMES = {"float": "float32", "double": "float64"}  # Where ONNX Runtime's are others than NumPy's.


def load(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Load a network that takes an input for each leaf of the observations."""
    head = Head(action_space, source.mode)
    try:
        session = onnxruntime.InferenceSession(
            source.content,
            _options(source.is_trusted),
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # A second attempt would be reported on stdout.
            # Constants would be computed now, in memory that no allocator bounds.
            disabled_optimizers=None if source.is_trusted else ["ConstantFolding"],
        )
    except Exception as error:  # ONNX Runtime's are of many types.
        raise UsageError(f"the file is damaged, or ONNX Runtime cannot run it: {first_line(error)}") from error
    inputs = match_inputs({entry.name: _input(entry) for entry in session.get_inputs()}, observation_space, EXPORT)
    return model_of(partial(session.run, _outputs(session, head)), inputs, head)


def _options(is_trusted: bool) -> onnxruntime.SessionOptions:
    """Return options with which a session starts no threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not is_trusted:
        _bound_memory()
        options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = 4  # Warnings about the graph are for who made it, and errors are raised as well.
    return options


@cache
def _bound_memory() -> None:
    """Bound the memory of all sessions of this process that use its allocator: sizes may be computed from others."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_requested = 1  # The strategy of the arena: no more than is asked for.
    arena = onnxruntime.OrtArenaCfg({"max_mem": MOST_BYTES, "arena_extend_strategy": as_requested})
    onnxruntime.create_and_register_allocator(memory, arena)


def _input(entry: Any) -> Input:
    name = entry.type.removeprefix("tensor(").removesuffix(")")
    try:
        dtype = np.dtype(_NAMES.get(name, name))
    except TypeError as error:
        raise UsageError(f"its input {entry.name!r} is {entry.type}, which no observations are") from error
    return Input(dtype, tuple(size if isinstance(size, int) else None for size in entry.shape))


def _outputs(session: onnxruntime.InferenceSession, head: Head) -> list[str]:
    """Return the names of the outputs that are needed.  A second one is known by its name, or it may be a value."""
    names = [output.name for output in session.get_outputs()]
    if head.num_outputs == 2 and not (len(names) == 2 and "std" in names[1].lower()):
        raise UsageError(f"must have the outputs 'mean' and 'log_std' to draw from, has {names}; or ", *WAY_OUT)
    return names[: head.num_outputs]
