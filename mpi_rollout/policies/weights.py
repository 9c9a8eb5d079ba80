"""Weights of torch, read without unpickling: `torch.load` has executed code of files, and believes their sizes.

A state dict that `torch.save` writes is a zip of a pickle and of plain bytes.  The pickle may do no more than name
tensors: all of its operations and all of its names are in the lists below.
"""

import io
import math
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.untrusted import FREE_PICKLE_BYTES, MEMBER_PICKLE_BYTES, damaged, members_of, without_folder

_PICKLED = (
    "PROTO FRAME STOP MARK EMPTY_DICT EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE NEWFALSE BININT BININT1 "
    "BININT2 LONG1 BINUNICODE SHORT_BINUNICODE GLOBAL STACK_GLOBAL BINPERSID REDUCE SETITEM SETITEMS BUILD "
    "BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET"
)
_OPERATIONS = set(_PICKLED.split())
# By the names of storages in pickles, with the numbers that dtypes have in torch's schema of exported programs.
_STORAGES = {
    "ByteStorage": (1, torch.uint8),
    "CharStorage": (2, torch.int8),
    "ShortStorage": (3, torch.int16),
    "IntStorage": (4, torch.int32),
    "LongStorage": (5, torch.int64),
    "HalfStorage": (6, torch.float16),
    "FloatStorage": (7, torch.float32),
    "DoubleStorage": (8, torch.float64),
    "BoolStorage": (12, torch.bool),
    "BFloat16Storage": (13, torch.bfloat16),
}
DTYPES = dict(_STORAGES.values())


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return NumPy's dtype; of bfloat16, which it does not have, the one that torch converts from."""
    return torch.empty(0, dtype=torch.float32 if dtype == torch.bfloat16 else dtype).numpy().dtype


class Stored(NamedTuple):
    """A tensor as a file says: where it is in which member."""

    key: str
    dtype: torch.dtype
    shape: Sequence[int]
    strides: Sequence[int]
    offset: int


def tensors_of(stored: dict[str, Stored], members: dict[str, bytes], folder: str) -> dict[str, torch.Tensor]:
    """Return tensors by their names, in the memory that they share; of one dtype, or it would take the memory twice."""
    dtypes = {entry.key: entry.dtype for entry in stored.values()}
    if any(dtypes[entry.key] != entry.dtype for entry in stored.values()):
        raise damaged("tensors of two dtypes are in one memory")
    memories = {key: _memory_of(members[folder + key], dtype) for key, dtype in dtypes.items()}
    return {name: _view_of(memories[entry.key], entry) for name, entry in stored.items()}


def _memory_of(content: bytes, dtype: torch.dtype) -> torch.Tensor:
    """Return plain bytes as numbers, in memory of torch's own: a product may round by where its numbers are."""
    if not content:
        return torch.empty(0, dtype=dtype)
    if dtype == torch.bool:  # Other bytes than 0 and 1 are no booleans.
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).ne(0)
    return torch.frombuffer(bytearray(content), dtype=dtype).clone()


def _view_of(memory: torch.Tensor, stored: Stored) -> torch.Tensor:
    _, _, shape, strides, offset = stored
    numbers = offset, *shape, *strides
    if not len(shape) == len(strides) <= 64 or any(
        type(number) is not int or not 0 <= number < 2**63 for number in numbers
    ):
        raise damaged(f"no tensor has the shape {shape!s:.60}")
    size = math.prod(shape)
    stop = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1 if size else 0
    if max(size, stop) > len(memory):
        raise damaged(f"a tensor of shape {shape!s:.60} in {len(memory):,} numbers")
    return memory.as_strided(shape, strides, offset if size else 0)


def read_weights(content: bytes, file_bytes: int) -> dict[str, torch.Tensor]:
    """Read a state dict that `torch.save` wrote into a file of this size; UsageError if it has more than tensors."""
    if not content.startswith(b"PK"):
        raise damaged("or written by torch 1.5 or older")
    members = without_folder(members_of(content, file_bytes))
    if members.get("byteorder", b"little") != b"little":
        raise UsageError("written on a machine of another byte order")
    pickled = members["data.pkl"]
    if len(pickled) > FREE_PICKLE_BYTES + MEMBER_PICKLE_BYTES * len(members):
        raise damaged(f"a pickle of {len(pickled):,} bytes in {len(members):,} members")
    others = {operation.name for operation, _, _ in pickletools.genops(pickled)} - _OPERATIONS
    if others:
        raise UsageError(f"has code instead of weights: {min(others)} in its pickle")
    stored = _Reader(io.BytesIO(pickled)).load()
    if not all(isinstance(entry, Stored) for entry in stored.values()):
        raise damaged("it has more than weights by their names")
    return tensors_of(stored, members, "data/")


class _Reader(pickle._Unpickler):  # The unpickler in Python: the one in C takes as much memory as a file claims.
    """Reads what tensors a pickle names; all else is refused."""

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name][1]
        if (module, name) not in _MADE:
            raise UsageError(f"has code instead of weights: {module}.{name}"[:120])
        return _MADE[module, name]

    def load_build(self) -> None:
        """Drop what an object would be given: torch has `_metadata` there."""
        self.stack.pop()  # type: ignore[attr-defined]

    dispatch = pickle._Unpickler.dispatch | {pickle.BUILD[0]: load_build}  # type: ignore[assignment]

    def persistent_load(self, place: Any) -> tuple[str, torch.dtype]:
        _, dtype, key, _, _ = place
        return key, dtype


_MADE: dict[tuple[str, str], Callable[..., object]] = {
    ("collections", "OrderedDict"): lambda: OrderedDict(),  # Without arguments: nothing is copied.
    ("torch._utils", "_rebuild_tensor_v2"): lambda place, offset, shape, strides, *_: Stored(
        place[0], place[1], tuple(shape), tuple(strides), offset
    ),
    ("torch._utils", "_rebuild_parameter"): lambda stored, *_: stored,
}
