"""HDF5's filters and checksums, applied here to bytes that do not pass through HDF5.

A chunk first passes shuffle and gzip, or lz4, zstd or blosc, where a dataset has them.  Its checksum, fletcher32, is
behind what comes of that.

The package hdf5plugin has the filters that HDF5 does not have itself, and registers them, so that HDF5 reads what they
have packed.  Here the same functions are called directly: they leave the interpreter's lock alone meanwhile.
"""

import ctypes
import math
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import pip_install

FILTER_CODES = {"gzip": h5py.h5z.FILTER_DEFLATE, "lz4": 32004, "zstd": 32015, "blosc": 32001}
NAMES = {code: name for name, code in FILTER_CODES.items()}
PLUGINS = "lz4", "zstd", "blosc"
# How many times smaller data become at most; zstd stores 128 KiB of one byte in 4 bytes.
MOST_SMALLER = {"none": 1, "gzip": 1032, "lz4": 256, "blosc": 256, "zstd": 2**16}
LEAST_NBYTES = 1024  # The least size of a leaf: images are larger.
REVERSE = 0x0100  # H5Z_FLAG_REVERSE of H5Zpublic.h: decompress.
# Level 4 makes Breakout's images 1.15 times smaller, in 2.5 times the time, and noisy numbers no smaller.
GZIP_LEVEL = 1
CHECKSUM_NBYTES = 4
MODULUS = 65535
WORDS_PER_ROW = 4096
MOST_ROWS = 65537  # The most rows of words whose sum still fits into 32 bits.
COLUMNS = np.arange(WORDS_PER_ROW, dtype=np.uint64)
FROM_END = COLUMNS[::-1] + 1


class Filters:
    """The filters of one dataset.

    A chunk has a filter mask with one bit for each filter: 0 if the chunk has passed it.  `none` is the mask of a chunk
    that is stored as it is in memory.
    """

    def __init__(self, dataset: h5py.Dataset):
        properties = dataset.id.get_create_plist()
        filters = [properties.get_filter(index) for index in range(properties.get_nfilters())]
        codes = [code for code, *_ in filters]
        self._nbytes: int = dataset.dtype.itemsize * math.prod(dataset.chunks)
        self._itemsize: int = dataset.dtype.itemsize if h5py.h5z.FILTER_SHUFFLE in codes else 1
        # The number and the parameters of what compresses chunks.
        self._packing = next(((code, values) for code, _, values, _ in filters if code in NAMES), None)
        has_checksums = h5py.h5z.FILTER_FLETCHER32 in codes
        self._without_checksum = 1 << codes.index(h5py.h5z.FILTER_FLETCHER32) if has_checksums else 0
        self.none = (1 << len(codes)) - 1
        self._checksum_alone = self.none - self._without_checksum

    def has_checksum(self, mask: int) -> bool:
        """Tell whether a chunk has a checksum."""
        return self._without_checksum > 0 and not mask & self._without_checksum

    def is_packed(self, mask: int) -> bool:
        """Tell whether a chunk is compressed."""
        return self._packing is not None and mask & self._checksum_alone == 0

    def encode(self, chunk: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the bytes of a chunk as they are in the file, and its filter mask; `chunk` has room for a checksum."""
        if self._packing is not None:
            data = self._packed(chunk[:-CHECKSUM_NBYTES])
            # Never as long as the chunk itself: HDF5 would put it in the place of what is committed.
            if data is not None and len(data) + CHECKSUM_NBYTES < len(chunk) - CHECKSUM_NBYTES:
                return np.append(data, np.frombuffer(fletcher32(data), np.uint8)), 0
        if not self._without_checksum:
            return chunk[:-CHECKSUM_NBYTES], self.none
        chunk[-CHECKSUM_NBYTES:] = np.frombuffer(fletcher32(chunk[:-CHECKSUM_NBYTES]), np.uint8)
        return chunk, self._checksum_alone

    def decode(self, stored: np.ndarray, mask: int) -> np.ndarray:
        """Return a chunk's bytes from those in the file; zlib.error if that fails.  Check no checksum."""
        data = stored[:-CHECKSUM_NBYTES] if self.has_checksum(mask) else stored
        if self._packing is None or not self.is_packed(mask):
            return data
        code, values = self._packing
        if code == h5py.h5z.FILTER_DEFLATE:
            whole = np.frombuffer(zlib.decompressobj().decompress(data.data, self._nbytes), np.uint8)
        elif (unpacked := apply(code, values, data, REVERSE)) is not None:
            whole = unpacked
        else:
            raise zlib.error(f"the filter {NAMES[code]} refuses it")
        if len(whole) != self._nbytes:
            raise zlib.error(f"{len(whole)} bytes came, expected {self._nbytes}")
        return whole.reshape(self._itemsize, -1).T.reshape(-1)

    def _packed(self, data: np.ndarray) -> np.ndarray | None:
        """Compress bytes, all first ones of the elements first, then all second ones; None if the filter cannot."""
        assert self._packing is not None
        code, values = self._packing
        data = np.ascontiguousarray(data.reshape(-1, self._itemsize).T)
        if code == h5py.h5z.FILTER_DEFLATE:
            return np.frombuffer(zlib.compress(data.data, GZIP_LEVEL), np.uint8)
        return apply(code, values, data)


def fletcher32(data: np.ndarray) -> bytes:
    """Return the checksum of a C-contiguous array's bytes, as HDF5 puts it behind a chunk.

    Notes
    -----
    It is `H5_checksum_fletcher32` of HDF5's H5checksum.c, over many bytes at once.  Of 16-bit big-endian words w_0 ...
    w_(n-1), sum1 is the sum.  sum2 is the sum of all values that sum1 has had: it has w_i n - i times.  Both are modulo
    65535; a sum is 0 only if all words are 0, and 65535 otherwise.

    Words are summed as they are in memory, little-endian: swapping the bytes of a word multiplies it by 256, modulo
    65535.
    """
    data = data.reshape(-1).view(np.uint8)
    num_words, is_odd = divmod(len(data), 2)
    sum1, sum2 = _sums(data[: 2 * num_words].view("<u2"))
    if is_odd:  # The last byte is the upper half of one more word.
        sum1 += int(data[-1])
        sum2 += sum1
    if sum1 == 0:
        return bytes(CHECKSUM_NBYTES)
    low, high = ((256 * total - 1) % MODULUS + 1 for total in (sum1, sum2))
    return (low | high << 16).to_bytes(CHECKSUM_NBYTES, "little")


def _sums(words: np.ndarray) -> tuple[int, int]:
    """Return the exact sum of the words, and modulo 65535 the sum that has word i n - i times.

    Word i = row * WORDS_PER_ROW + column is taken (n - row * WORDS_PER_ROW) - column times.  So sums over rows and
    over columns are enough for all products.
    """
    num_rows, num_left = divmod(len(words), WORDS_PER_ROW)
    if not num_rows:  # Few words: a compressed image, for example.
        few = words.astype(np.uint64)
        return int(np.add.reduce(few)), int(FROM_END[WORDS_PER_ROW - num_left :] @ few)
    body = words[: len(words) - num_left].reshape(num_rows, WORDS_PER_ROW)
    left = words[len(words) - num_left :].astype(np.uint64)
    of_rows = np.add.reduce(body, axis=1, dtype=np.uint32)
    of_columns = np.add.reduce(body, axis=0, dtype=np.uint32 if num_rows <= MOST_ROWS else np.uint64)
    times = np.arange(len(words), num_left, -WORDS_PER_ROW, dtype=np.uint64) % MODULUS
    sum2 = int(times @ (of_rows % MODULUS)) - int(COLUMNS @ (of_columns % MODULUS))
    sum2 += int(FROM_END[WORDS_PER_ROW - num_left :] @ left)
    return int(np.add.reduce(of_rows, dtype=np.uint64) + np.add.reduce(left)), sum2


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


def why_missing(compression: str) -> str:
    """Say what to do about a compression for which this Python does not have what it needs; "" if it has."""
    if compression not in PLUGINS or find_spec("hdf5plugin") is not None:
        return ""
    return f"{compression} needs the package hdf5plugin, which is not installed: {pip_install('[compression]')}"


def check_available(compression: str) -> None:
    """Refuse a compression of a run that this Python does not have; UsageError."""
    if why := why_missing(compression).removeprefix(compression):
        raise UsageError(Option("compression", compression), f"{why}, or use ", Option("compression", "gzip"))


def register_for(file: h5py.File) -> None:
    """Let HDF5 know the filters of a file, if its configuration names one that it does not have."""
    with suppress(Exception):  # Whatever is wrong with a file, who reads its attributes says.
        config = str(file.attrs["config"])
        if any(f'"compression": "{name}"' in config for name in PLUGINS):
            _plugins()


def compression_of(dataset: h5py.Dataset) -> str:
    """Return the compression of a dataset: a name as of the option `compression`, or the filter's number."""
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


def filter_options(compression: str, dtype: np.dtype, gzip_level: int) -> dict[str, object]:
    """Return the arguments of `create_dataset` for a compressed column."""
    if compression == "gzip":
        return {"compression": "gzip", "compression_opts": gzip_level, "shuffle": dtype.itemsize > 1}
    own = _plugins()
    made = {"lz4": own.LZ4, "zstd": lambda: own.Zstd(clevel=1), "blosc": own.Blosc}
    return dict(made[compression]())


def apply(code: int, values: tuple[int, ...], data: np.ndarray, flags: int = 0) -> np.ndarray | None:
    """Pass bytes through a filter, by its number and parameters; None where it fails or makes them no smaller."""
    libc, numbers = _libc(), (ctypes.c_uint * max(len(values), 1))(*values)
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


@cache
def _libc() -> ctypes.CDLL:
    """Return the C library; to make this object takes longer than to compress a small image."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


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


@cache
def _function(code: int) -> Callable[..., int]:
    """Return a filter's function, from the library that hdf5plugin has."""
    library = ctypes.CDLL(_plugins().get_config().registered_filters[NAMES[code]])
    library.H5PLget_plugin_info.restype = ctypes.POINTER(_Class)
    return _FILTER(library.H5PLget_plugin_info().contents.filter)
