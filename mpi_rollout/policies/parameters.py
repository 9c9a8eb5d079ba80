"""Parameters of policies as one buffer of bytes: what goes to all ranks, without pickling them one by one."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.errors import UsageError, words_of


class Parameter(NamedTuple):
    """What a parameter is called, and what array it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]


Layout = list[Parameter]


def array_of(name: str, value: Any) -> np.ndarray:
    """Return a parameter as an array; a tensor may be on another device.

    Of bfloat16, which NumPy does not have, it has the bits, as int16.

    Raises
    ------
    UsageError
        It is no array of numbers.
    """
    try:
        if hasattr(value, "detach"):
            import torch  # Only who has tensors has torch.

            value = value.detach().cpu()
            value = (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the parameter {name!r} of the policy is no array: {words_of(error)}") from error
    if array.dtype.hasobject:
        raise UsageError(f"the parameter {name!r} of the policy is no array of numbers, it is {type(value).__name__}")
    return array


def layout_of(parameters: Mapping[str, Any]) -> Layout:
    """Return what parameters are, in their order.

    Raises
    ------
    UsageError
        One is no array of numbers.
    """
    arrays = {name: array_of(name, value) for name, value in parameters.items()}
    return [Parameter(name, array.dtype.str, array.shape) for name, array in arrays.items()]


def packed(parameters: Mapping[str, Any] | Sequence[Any], layout: Layout) -> np.ndarray:
    """Return parameters one after the other, as bytes in an array.

    Parameters
    ----------
    parameters
        Arrays or tensors by their names, or in the order of the layout.

    Raises
    ------
    UsageError
        They do not fit the layout; the message names the first that does not.
    """
    if isinstance(parameters, Mapping):
        values = _by_name(parameters, layout)
    else:
        if not isinstance(parameters, Iterable):
            kind = type(parameters).__name__
            raise UsageError(f"parameters must be a dict of arrays, such as a state dict, or all in order, got {kind}")
        values = list(parameters)
        if len(values) != len(layout):
            raise UsageError(f"the policy has {len(layout)} parameters, got {len(values)}")
    nbytes = sum(_room_of(np.dtype(dtype).itemsize * math.prod(shape)) for _, dtype, shape in layout)
    buffer, start = np.zeros(nbytes, np.uint8), 0
    for value, (name, dtype, shape) in zip(values, layout, strict=True):
        array = array_of(name, value)
        if array.dtype.str != dtype or array.shape != shape:
            expected, got = f"{np.dtype(dtype)} of shape {shape}", f"{array.dtype} of shape {array.shape}"
            raise UsageError(f"the parameter {name!r} of the policy must be {expected}, got {got}")
        buffer[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += _room_of(array.nbytes)
    return buffer


def _by_name(parameters: Mapping[str, Any], layout: Layout) -> list[Any]:
    names = [parameter.name for parameter in layout]
    if unknown := [name for name in parameters if name not in names]:
        raise UsageError(f"the policy has no parameter {unknown[0]!r}; it has {', '.join(names)}")
    if missing := [name for name in names if name not in parameters]:
        raise UsageError(f"the parameter {missing[0]!r} of the policy is missing")
    return [parameters[name] for name in names]


def _room_of(nbytes: int) -> int:
    """Return the bytes for a parameter in the buffer, so that the next one is aligned."""
    return -(-nbytes // 8) * 8


def unpacked(buffer: np.ndarray, layout: Layout) -> dict[str, np.ndarray]:
    """Return the parameters of a buffer by their names: views of it."""
    arrays, start = {}, 0
    for name, dtype, shape in layout:
        arrays[name] = np.ndarray(shape, dtype, buffer, start)
        start += _room_of(arrays[name].nbytes)
    return arrays
