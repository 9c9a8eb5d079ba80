"""Parameters of policies as one buffer of bytes: what goes to all ranks, without pickling them one by one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.spaces import Leaf, in_native_order
from mpi_rollout.errors import UsageError
from mpi_rollout.text import words_of

if TYPE_CHECKING:
    import torch


Layout = list[Leaf]


def array_of(name: str, value: object) -> np.ndarray:
    """Return a parameter, maybe a tensor of another device, as an array; UsageError if it is none of numbers.

    Of bfloat16, which NumPy does not have, it has the bits, as int16.
    """
    try:
        if hasattr(value, "detach"):
            import torch  # Only who has tensors has torch.

            tensor: torch.Tensor = value.detach().cpu()
            value = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        array = in_native_order(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the parameter {name!r} of the policy is no array: {words_of(error)}") from error
    if array.dtype.hasobject:
        raise UsageError(f"the parameter {name!r} of the policy is no array of numbers, it is {type(value).__name__}")
    return array


def layout_of(parameters: Mapping[str, object]) -> Layout:
    """Return the names, shapes and dtypes of parameters, in their order."""
    arrays = {name: array_of(name, value) for name, value in parameters.items()}
    return [Leaf((name,), array.dtype, array.shape) for name, array in arrays.items()]


def packed(parameters: Mapping[str, object] | Sequence[object], layout: Layout) -> np.ndarray:
    """Return arrays or tensors, by their names or in the order of the layout, as the bytes of one array.

    UsageError names the first that does not fit the layout.
    """
    values = _by_name(parameters, layout) if isinstance(parameters, Mapping) else _in_order(parameters, layout)
    buffer = np.zeros(sum(map(_size_of, layout)), np.uint8)
    for value, (name, target) in zip(values, unpacked(buffer, layout).items(), strict=True):
        array = array_of(name, value)
        if (array.dtype, array.shape) != (target.dtype, target.shape):
            expected, got = (f"{it.dtype} of shape {it.shape}" for it in (target, array))
            raise UsageError(f"the parameter {name!r} of the policy must be {expected}, got {got}")
        target[...] = array
    return buffer


def _in_order(parameters: object, layout: Layout) -> list[object]:
    if not isinstance(parameters, Iterable):
        kind = type(parameters).__name__
        raise UsageError(f"parameters must be a dict of arrays, such as a state dict, or all in order, got {kind}")
    values = list(parameters)
    if len(values) != len(layout):
        raise UsageError(f"the policy has {len(layout)} parameters, got {len(values)}")
    return values


def _by_name(parameters: Mapping[str, object], layout: Layout) -> list[object]:
    names = [leaf.path for leaf in layout]
    if unknown := [name for name in parameters if name not in names]:
        raise UsageError(f"the policy has no parameter {unknown[0]!r}; it has {', '.join(names)}")
    if missing := [name for name in names if name not in parameters]:
        raise UsageError(f"the parameter {missing[0]!r} of the policy is missing")
    return [parameters[name] for name in names]


def load_module(module: "torch.nn.Module", parameters: Mapping[str, np.ndarray]) -> None:
    """Give a module of torch other parameters."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in parameters.items()}
    for name, own in module.state_dict().items():
        if own.dtype == torch.bfloat16:  # These came as their bits.
            tensors[name] = tensors[name].view(own.dtype)
    module.load_state_dict(tensors)


def unpacked(buffer: np.ndarray, layout: Layout) -> dict[str, np.ndarray]:
    """Return the parameters of a buffer by their names: views of it."""
    arrays, start = {}, 0
    for leaf in layout:
        arrays[leaf.path] = np.ndarray(leaf.shape, leaf.dtype, buffer, start)
        start += _size_of(leaf)
    return arrays


def _size_of(leaf: Leaf) -> int:
    """Return the bytes of a parameter in a buffer, in which the next one is aligned."""
    return -(-leaf.nbytes // 8) * 8
