"""Policies in ONNX files, run by ONNX Runtime on one thread, in bounded memory."""

from functools import cache, partial

import numpy as np
import onnxruntime

from mpi_rollout.core.spaces import Leaf, Space, leaves
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.policies.devices import CPU
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.networks import WAY_OUT, Head, Inputs, model_of
from mpi_rollout.text import first_line

MOST_BYTES = 1 << 30  # What a network that is not trusted may take to act.
_NAMES = {"float": "float32", "double": "float64"}  # Where ONNX Runtime's are others than NumPy's.


def load(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Load a network that takes an input for each leaf of the observations."""
    head, providers = Head(action_space, source.mode), _providers(source.device)
    try:
        session = onnxruntime.InferenceSession(
            source.content,
            _options(source.is_trusted),
            providers=providers,
            enable_fallback=0,  # A second attempt would be reported on stdout.
            # Constants would be computed now, in memory that no allocator bounds.
            disabled_optimizers=None if source.is_trusted else ["ConstantFolding"],
        )
    except Exception as error:  # ONNX Runtime's are of many types.
        raise UsageError(f"the file is damaged, or ONNX Runtime cannot run it: {first_line(error)}") from error
    if session.get_providers()[0] != providers[0][0]:
        raise UsageError(Option("policy_device", source.device), ": ONNX Runtime cannot load what it needs for CUDA")
    return model_of(partial(session.run, _outputs(session, head)), _inputs(session, observation_space), head)


def _providers(device: str) -> list[tuple[str, dict[str, str]]]:
    """Return what computes on a device; UsageError if ONNX Runtime has no such provider, for it would take the CPU."""
    if device == CPU:
        return [("CPUExecutionProvider", {})]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        why = ": ONNX Runtime has no CUDA here; pip install onnxruntime-gpu in its place"
        raise UsageError(Option("policy_device", device), why)
    return [("CUDAExecutionProvider", {"device_id": device[5:], "gpu_mem_limit": str(MOST_BYTES)})]


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


def _inputs(session: onnxruntime.InferenceSession, observation_space: Space) -> Inputs:
    """Find the part of the observations that each input takes: by its path, or the only one."""
    observed = {leaf.path: leaf for leaf in leaves(observation_space)}
    taken = {entry.name: entry.type for entry in session.get_inputs()}
    if len(observed) == len(taken) == 1:
        observed = dict(zip(taken, observed.values(), strict=True))
    if observed.keys() != taken.keys():
        wanted, given = (
            ", ".join(repr(name) if name else "one array" for name in names) for names in (taken, observed)
        )
        hint = ": name the inputs so" if len(observed) > 1 else ""
        raise UsageError(f"takes {wanted}, the envs' observations are {given}{hint}")
    return {name: (leaf, _dtype_for(leaf, taken[name])) for name, leaf in observed.items()}


def _dtype_for(leaf: Leaf, taken: str) -> np.dtype:
    """Return the dtype in which an input gets an observation: its own, but for floats that it has as other floats.

    Bytes of an image do not become floats: some networks want these from 0 to 255, and some from 0 to 1.
    """
    name = taken.removeprefix("tensor(").removesuffix(")")
    try:
        dtype = np.dtype(_NAMES.get(name, name))
    except TypeError:
        return leaf.dtype
    is_like = dtype.kind == leaf.dtype.kind or (dtype.kind in "iu" and leaf.dtype.kind in "iu")
    return dtype if is_like else leaf.dtype


def _outputs(session: onnxruntime.InferenceSession, head: Head) -> list[str]:
    """Return the names of the outputs that are needed.  A second one is known by its name, or it may be a value."""
    names = [output.name for output in session.get_outputs()]
    if head.num_outputs == 2 and not (len(names) == 2 and "std" in names[1].lower()):
        raise UsageError(f"must have the outputs 'mean' and 'log_std' to draw from, has {names}; or ", *WAY_OUT)
    return names[: head.num_outputs]
