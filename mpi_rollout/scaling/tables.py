"""Files of samples: rows of frozen dataclasses as HDF5 tables, and a file that is never half written.

What studies of any kind share about their files; it knows neither their rows nor what they mean.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import DataError, StorageError, UsageError, first_line

_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_, str: h5py.string_dtype()}
FACTS = ("cpu_model", "num_cores", "versions", "commit")


@contextmanager
def replaced(path: str) -> Iterator[h5py.File]:
    """A new file to fill, which then takes the place of what there was.

    Raises
    ------
    StorageError
        It cannot be written; what was there is as before.
    """
    new = f"{path}.new"
    try:
        with h5py.File(new, "w") as file:
            yield file
        with open(new, "rb") as written:
            os.fsync(written.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as error:
        raise StorageError(f"--out {path}: cannot write {new}: {first_line(error)}") from error
    finally:
        with suppress(OSError):  # If all went well, it has another name by now.
            os.unlink(new)


@contextmanager
def opened(path: str, what: str) -> Iterator[h5py.File]:
    """A file to read; `what` it should be.

    Raises
    ------
    DataError
        It is not there, or reading it has failed in any way.
    """
    try:
        with h5py.File(path, "r") as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, UsageError) as error:
        raise DataError(f"{path} is not a readable file of a {what}: {first_line(error)}") from error


def format_of(path: str) -> str | None:
    """What a file says that it is; None if it is no HDF5 file or says nothing."""
    with suppress(OSError, RuntimeError), h5py.File(path, "r") as file:
        found = file.attrs.get("format")
        return found if isinstance(found, str) else None
    return None


def check_format(path: str, attributes: Mapping[str, Any], what: str, known_format: str, known: int) -> None:
    """Raise DataError if a file is no `what`, or one of a version that this program does not know."""
    found = attributes.get("format")
    if found != known_format:
        is_of = f", but of format {found!r}" if found else ""
        raise DataError(f"{path} is no {what} of mpi_rollout{is_of}; move it away or use another --out")
    version = attributes.get("format_version")
    if version != known:
        raise DataError(f"{path} has format version {version}, this program knows {known}")


def facts_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What `machine.machine_facts` gave when the file was begun."""
    return {name: attributes[name] for name in FACTS} | {"num_cores": int(attributes["num_cores"])}


def told_facts(stored: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """In which facts machine and program are others than when the file was begun."""
    return [
        f"{name.replace('_', ' ')} was {stored[name] or 'unknown'}, is {value or 'unknown'}"
        for name, value in facts.items()
        if stored[name] != value
    ]


def add_table(file: h5py.File, name: str, row: type, rows: Sequence[Any]) -> None:
    """Write rows, all of the dataclass `row`, as a table with a column for each field."""
    dtype = dtype_of(row)
    file[name] = np.array([tuple(getattr(each, column) for column in dtype.names) for each in rows], dtype)


def dtype_of(row: type) -> np.dtype:
    """The dtype of a table of such rows."""
    return np.dtype([(each.name, _DTYPES[each.type]) for each in fields(row)])


def rows_of(row: type, table: np.ndarray) -> tuple[Any, ...]:
    """Rows of a table as what they were before they were written."""
    expected = dtype_of(row).names
    if table.dtype.names != expected:
        raise ValueError(f"a table has the columns {table.dtype.names}, expected {expected}")
    kinds: Sequence[type] = [each.type for each in fields(row)]
    return tuple(
        row(*(value.decode() if kind is str else kind(value) for kind, value in zip(kinds, each, strict=True)))
        for each in table.tolist()
    )
