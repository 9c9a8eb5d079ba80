"""A file of attributes and tables as plain data, as a study, a comparison and a simulation are.  It may be damaged."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

import h5py
import numpy as np

from mpi_rollout.storage.objects import ContentError, Tell, attributes_of, check_objects, check_room, reading
from mpi_rollout.storage.unmarked import open_unmarked

DIGEST = "digest"


def contents(tell: Tell, path: str, names: Collection[str]) -> dict[str, Any]:
    """The attributes of the root group, the named tables that there are, and whether all is as it was written.

    Raises
    ------
    DataError
        The file cannot be read.
    """
    with reading(path, tell, open_unmarked) as (file, note):
        check_objects(file, note)
        note("its tables")
        attributes = plain_attributes(file)
        tables = {name: plain_table(file, name) for name in names if name in file}
        # An earlier version wrote files without a digest.
        is_as_written = DIGEST not in attributes or not names or attributes[DIGEST] == digest_of(file)
        return {"attributes": attributes, "tables": tables, "is_as_written": is_as_written}


def digest_of(file: h5py.File) -> str:
    """SHA-256 of all attributes of the root group but this, and of all tables in it."""
    tables = {name: plain_table(file, name) for name in sorted(file) if isinstance(file[name], h5py.Dataset)}
    attributes = {name: value for name, value in plain_attributes(file).items() if name != DIGEST}
    return hashlib.sha256(json.dumps([attributes, tables], sort_keys=True).encode()).hexdigest()


def plain_attributes(file: h5py.File) -> dict[str, Any]:
    """Those of the root group; None for what is neither text nor a number."""
    return {name: _plain(value) for name, value in attributes_of(file).items()}


def plain_table(file: h5py.File, name: str) -> dict[str, Any]:
    """The names of its columns, and its rows as lists of numbers and texts."""
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.names is None or dataset.ndim != 1:
        raise ContentError(f"{name} is no table")
    check_room(file, name, dataset, len(dataset), room=0)
    return {
        "columns": list(dataset.dtype.names),
        "rows": [[_plain(value) for value in row] for row in dataset[...].tolist()],
    }


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()  # h5py gives bytes that are no text as lone surrogates.
    except UnicodeError:
        return None
    return value if isinstance(value, str | int | float) else None
