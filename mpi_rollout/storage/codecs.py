"""Compression by filters that HDF5 does not have itself: lz4, zstd and blosc, from the package hdf5plugin.

`hdf5plugin` registers them, so that HDF5 reads what they have packed.  Chunks are packed here by the same functions,
called directly: they leave the interpreter's lock alone meanwhile.
"""

import ctypes
import zlib
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import Option, UsageError

EXTRA = "mpi_rollout[compression]"
FILTER_CODES = {"gzip": h5py.h5z.FILTER_DEFLATE, "lz4": 32004, "zstd": 32015, "blosc": 32001}
NAMES = {code: name for name, code in FILTER_CODES.items()}
PLUGINS = "lz4", "zstd", "blosc"
# How many times smaller data become at most; zstd stores 128 KiB of one byte in 4 bytes.
MOST_SMALLER = {"none": 1, "gzip": 1032, "lz4": 256, "blosc": 256, "zstd": 2**16}
LEAST_NBYTES = 1024  # The least size of a leaf: images are larger.
REVERSE = 0x0100  # H5Z_FLAG_REVERSE of H5Zpublic.h: decompress.
_functions: dict[int, Any] = {}


class _Class(ctypes.Structure):
    """HDF5's H5Z_class2_t, of H5Zdevelop.h."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encoder_present", ctypes.c_uint),
        ("decoder_present", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", ctypes.c_void_p),
    )


_FILTER = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_void_p),
)


def is_available(compression: str) -> bool:
    """Tell whether this Python has what a compression needs."""
    return compression not in PLUGINS or find_spec("hdf5plugin") is not None


def why_missing(compression: str) -> str:
    """Say what to do about a compression that is not available."""
    return f"{compression} needs the package hdf5plugin, which is not installed: pip install '{EXTRA}'"


def check_available(compression: str) -> None:
    """Refuse a compression of a run that this Python does not have; UsageError."""
    if not is_available(compression):
        why = why_missing(compression).removeprefix(compression)
        raise UsageError(Option("compression", compression), f"{why}, or use ", Option("compression", "gzip"))


def register_for(file: h5py.File) -> None:
    """Let HDF5 know the filters of a file, if its configuration names one that it does not have."""
    with suppress(Exception):  # Whatever is wrong with a file, who reads its attributes says.
        config = str(file.attrs["config"])
        if any(f'"compression": "{name}"' in config for name in PLUGINS):
            _plugins()


def compression_of(dataset: h5py.Dataset) -> str:
    """Return the compression of a dataset: a name of `shared_options.COMPRESSIONS`, or the filter's number."""
    properties = dataset.id.get_create_plist()
    codes = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    own = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
    names = [NAMES.get(code, f"filter {code}") for code in codes if code not in own]
    return "+".join(names) or "none"


def pays(compression: str, dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    """Tell whether to compress a column, by the dtype and shape of one env's row.

    gzip is for who wants the smallest file: it packs all.  The fast ones pack what becomes much smaller: images, and
    other large arrays of whole numbers.  Rewards and small observations then stay where single rows can be read.
    """
    if compression in PLUGINS:
        return dtype.kind in "iub" and dtype.itemsize * int(np.prod(shape, dtype=np.int64)) >= LEAST_NBYTES
    return compression != "none"


def filter_options(compression: str, dtype: np.dtype, gzip_level: int) -> dict[str, Any]:
    """Return the arguments of `create_dataset` for a compressed column."""
    if compression == "gzip":
        return {"compression": "gzip", "compression_opts": gzip_level, "shuffle": dtype.itemsize > 1}
    own = _plugins()
    made = {"lz4": own.LZ4, "zstd": lambda: own.Zstd(clevel=1), "blosc": own.Blosc}
    return dict(made[compression]())


def apply(code: int, values: tuple[int, ...], data: np.ndarray, flags: int = 0) -> np.ndarray | None:
    """Pass bytes through a filter; return new bytes, or None where the filter fails or makes them no smaller.

    Parameters
    ----------
    code
        The filter's number in HDF5.
    values
        Its parameters, as the dataset has them.
    """
    libc, numbers = ctypes.CDLL(None), (ctypes.c_uint * max(len(values), 1))(*values)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    data = np.ascontiguousarray(data)
    buffer, size = ctypes.c_void_p(libc.malloc(data.nbytes)), ctypes.c_size_t(data.nbytes)
    ctypes.memmove(buffer, data.ctypes.data, data.nbytes)  # The filter frees it, and gives another one.
    try:
        nbytes = _function(code)(flags, len(values), numbers, data.nbytes, ctypes.byref(size), ctypes.byref(buffer))
        if not nbytes or not buffer.value:
            return None
        return np.frombuffer(ctypes.string_at(buffer, nbytes), np.uint8)
    finally:
        libc.free(buffer)


def unpack(code: int, values: tuple[int, ...], data: np.ndarray) -> np.ndarray:
    """Decompress bytes; zlib.error if that fails."""
    if (whole := apply(code, values, data, REVERSE)) is None:
        raise zlib.error(f"the filter {NAMES[code]} refuses it")
    return whole


@cache
def _plugins() -> Any:
    """Return the package whose filters HDF5 uses from now on.

    Where HDF5_PLUGIN_PATH is set, HDF5 has found filters there before, which may not work with h5py's HDF5.
    """
    import hdf5plugin

    others = [name for name in PLUGINS if hdf5plugin.get_config().registered_filters.get(name, "unknown") == "unknown"]
    if others:
        hdf5plugin.register(tuple(others))
    return hdf5plugin


def _function(code: int) -> Any:
    """Return a filter's function, from the library that hdf5plugin has."""
    if code not in _functions:
        library = ctypes.CDLL(_plugins().get_config().registered_filters[NAMES[code]])
        library.H5PLget_plugin_info.restype = ctypes.POINTER(_Class)
        _functions[code] = _FILTER(library.H5PLget_plugin_info().contents.filter)
    return _functions[code]
