"""Files of samples: rows of frozen dataclasses as HDF5 tables, and a file that is never half written.

What studies of any kind share about their files; it knows neither their rows nor what they mean.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import h5py
import numpy as np

from mpi_rollout.errors import ContentError, DataError, StorageError, UsageError, first_line
from mpi_rollout.storage.child import in_child
from mpi_rollout.storage.reader import contents_digest

_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_, str: h5py.string_dtype()}
PATIENCE_S = 20.0  # A file of samples is small.
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
            file.attrs["digest"] = contents_digest(file)
        with open(new, "rb") as written:
            os.fsync(written.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as error:
        raise StorageError(f"--out {path}: cannot write {new}: {first_line(error)}") from error
    finally:
        with suppress(OSError):  # If all went well, it has another name by now.
            os.unlink(new)


MEASURED = ("seconds", "env_steps", "num_steps", "env_steps_per_s", "bare_env_steps_per_s")


@dataclass(frozen=True)
class Contents:
    """What a file holds, as plain data.

    Parameters
    ----------
    tables
        By name: {"columns": names, "rows": lists of values}.
    is_as_written
        The digest fits, if there is one.
    """

    attributes: dict[str, Any]
    tables: dict[str, Any]
    is_as_written: bool

    def value(self, name: str, kind: type) -> Any:
        """An attribute of a type; ContentError if it is missing or of another one."""
        return _checked(f"its attribute {name}", self.attributes.get(name), kind)

    def parsed(self, name: str) -> dict[str, Any]:
        """An attribute that is an object in JSON; ContentError if it is something else."""
        try:
            stored = json.loads(self.value(name, str))
        except (ValueError, RecursionError) as error:
            raise ContentError(f"its attribute {name} is no JSON: {first_line(error)}") from error
        return _checked(f"its attribute {name}", stored, dict)

    def record(self, name: str, kind: type) -> Any:
        """An attribute that is a dataclass in JSON; ContentError if it is something else."""
        return _record(f"its attribute {name}", self.parsed(name), kind)

    def rows(self, name: str, kind: type) -> tuple[Any, ...]:
        """A table as what its rows were before they were written; ContentError if it is another one."""
        if name not in self.tables:
            raise ContentError(f"there is no table {name}")
        columns, expected = self.tables[name]["columns"], list(get_type_hints(kind))
        if columns != expected:
            raise ContentError(f"a table has the columns {columns}, expected {expected}")
        rows = []
        for number, stored in enumerate(self.tables[name]["rows"]):
            row = _checked(f"{name}, row {number:,}", dict(zip(columns, stored, strict=True)), kind)
            _check_measured(f"{name}, row {number:,}", row)
            rows.append(row)
        return tuple(rows)


def _check_measured(what: str, row: Any) -> None:
    """Refuse what no job can have measured, and others divide by; a job that failed has measured nothing."""
    for column in fields(row):
        value = getattr(row, column.name)
        if column.name in MEASURED and not getattr(row, "error", "") and not 0 < value < math.inf:
            raise ContentError(f"{what}: {column.name} cannot be {value!r:.80}")


@contextmanager
def opened(path: str, what: str, names: Sequence[str] = ()) -> Iterator[Contents]:
    """What a file holds, of tables those that are named; `what` it should be.  It is read in a child.

    Raises
    ------
    DataError
        It is not there or cannot be read, or the `with` block finds that it is something else.
    """
    contents = in_child("mpi_rollout.storage.reader:contents", path, list(names), patience_s=PATIENCE_S)
    try:
        yield Contents(**contents)
        if not contents["is_as_written"]:
            raise ContentError("what it holds is not what was written: its digest does not fit")
    except (ContentError, UsageError) as error:
        raise DataError(f"{path} is not a readable file of a {what}: {error}") from error


def format_of(path: str) -> str | None:
    """What a file says that it is; None if it is no HDF5 file or says nothing."""
    with suppress(DataError), opened(path, "study") as contents:
        return contents.value("format", str)
    return None


def _checked(what: str, value: Any, kind: Any) -> Any:
    """A value from JSON as one of a type: of a dataclass, its fields; ContentError if it is none."""
    if isinstance(kind, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if is_dataclass(kind) and isinstance(value, dict):
        return _record(what, value, kind)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_checked(f"{what}, element {n}", each, get_args(kind)[0]) for n, each in enumerate(value))
    if type(value) is (get_origin(kind) or kind) or (kind is float and type(value) is int):
        return value
    raise ContentError(f"{what} cannot be {value!r:.80}")


def _record(what: str, stored: dict[str, Any], kind: type) -> Any:
    kinds = get_type_hints(kind)
    if unknown := sorted(stored.keys() - kinds.keys()):
        raise ContentError(f"{what} has an unknown {unknown[0]}")
    values = {name: _checked(f"{what}: {name}", value, kinds[name]) for name, value in stored.items()}
    for each in fields(kind):
        if each.name not in values and each.default is each.default_factory is MISSING:
            raise ContentError(f"{what} has no {each.name}")
    return kind(**values)


def check_format(path: str, attributes: Mapping[str, Any], what: str, known_format: str, known: int) -> None:
    """Raise DataError if a file is no `what`, or one of a version that this program does not know."""
    found = attributes.get("format")
    if found != known_format:
        is_of = f", but of format {found!r}" if found else ""
        raise DataError(f"{path} is no {what} of mpi_rollout{is_of}; move it away or use another --out")
    version = attributes.get("format_version")
    if version != known:
        raise DataError(f"{path} has format version {version}, this program knows {known}")


def facts_of(contents: Contents) -> dict[str, Any]:
    """What `machine.machine_facts` gave when the file was begun."""
    return {name: contents.value(name, int if name == "num_cores" else str) for name in FACTS}


def origin_of(contents: Contents) -> dict[str, str]:
    """Command, host and time of the first start of what the file is of."""
    return {name: contents.value(name, str) for name in ("command", "host", "started")}


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
