"""Files of measurements: tables of dataclasses in HDF5, each file written as a whole or not at all."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import StorageError, first_line

_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_, str: h5py.string_dtype()}


def dtype_of(row: type) -> np.dtype:
    """The dtype of a table of such rows."""
    return np.dtype([(each.name, _DTYPES[each.type]) for each in fields(row)])


def table_of(row: type, rows: Sequence[Any]) -> np.ndarray:
    """Rows as a table."""
    dtype = dtype_of(row)
    return np.array([tuple(getattr(each, column) for column in dtype.names) for each in rows], dtype)


def rows_of(row: type, table: np.ndarray) -> tuple[Any, ...]:
    """Rows of a table as what they were before they were written.

    Raises
    ------
    ValueError
        The table is not one of such rows.
    """
    expected = dtype_of(row).names
    if table.dtype.names != expected:
        raise ValueError(f"a table has the columns {table.dtype.names}, expected {expected}")
    kinds: Sequence[type] = [each.type for each in fields(row)]
    return tuple(
        row(*(value.decode() if kind is str else kind(value) for kind, value in zip(kinds, each, strict=True)))
        for each in table.tolist()
    )


def write_whole(path: str, fill: Callable[[h5py.File], None]) -> None:
    """Have a new file filled and put it on the disk, in the place of what was there.

    Raises
    ------
    StorageError
        It cannot be written; what was there is as before.
    """
    new = f"{path}.new"
    try:
        with h5py.File(new, "w") as file:
            fill(file)
        with open(new, "rb") as written:
            os.fsync(written.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            os.unlink(new)
        raise StorageError(f"--out {path}: cannot write {new}: {first_line(error)}") from error


def format_of(path: str) -> str:
    """The attribute `format` of a file; empty if there is no such file or it says nothing of itself."""
    try:
        with h5py.File(path, "r") as file:
            return str(file.attrs.get("format", ""))
    except (OSError, RuntimeError):
        return ""
