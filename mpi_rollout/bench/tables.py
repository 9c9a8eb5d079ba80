"""Tables: rows of frozen dataclasses in HDF5 files that are never half written, and rows of text in reports.

What studies of any kind share about their files.  It knows neither their rows nor what these mean.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import h5py
import numpy as np

from mpi_rollout.bench.plan import STORED
from mpi_rollout.bench.workplace import Facts
from mpi_rollout.errors import ContentError, DataError, StorageError, UsageError, first_line
from mpi_rollout.storage.child import in_child
from mpi_rollout.storage.reader import contents_digest

_DTYPES: dict[object, np.dtype] = {
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    bool: np.dtype(np.bool_),
    str: h5py.string_dtype(),
}
PATIENCE_S = 20.0  # A file of a study is small.
FACTS = ("cpu_model", "num_cores", "versions", "commit")
MEASURED = ("seconds", "env_steps", "num_steps", "env_steps_per_s", "bare_env_steps_per_s")

Record = TypeVar("Record")
Tables = Mapping[str, tuple[type, Sequence[object]]]
"""By name: the dataclass of a table's rows, and the rows."""


@contextmanager
def replaced(path: str) -> Iterator[h5py.File]:
    """Give a new file to fill, which then takes the place of what there was.

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


def write_study(path: str, attributes: Mapping[str, str | int], tables: Tables) -> None:
    """Write a file of a study, in the place of what was there.

    Raises
    ------
    StorageError
        It cannot be written; what was there is as before.
    """
    with replaced(path) as file:
        file.attrs.update(attributes)
        for name, (row, rows) in tables.items():
            add_table(file, name, row, rows)


def add_table(file: h5py.File, name: str, row: type, rows: Sequence[object]) -> None:
    """Write rows, all of the dataclass `row`, as a table with a column for each field."""
    names = [field.name for field in fields(row)]
    file[name] = np.array([tuple(getattr(record, column) for column in names) for record in rows], dtype_of(row))


def dtype_of(row: type) -> np.dtype:
    """Return the dtype of a table of such rows."""
    return np.dtype([(field.name, _DTYPES[field.type]) for field in fields(row)])


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

    def value(self, name: str, kind: type[Record]) -> Record:
        """Return an attribute of a type; ContentError if it is missing or of another one."""
        return _checked(f"its attribute {name}", self.attributes.get(name), kind)

    def parsed(self, name: str) -> dict[str, Any]:
        """Return an attribute that is an object in JSON; ContentError if it is something else."""
        try:
            stored = json.loads(self.value(name, str))
        except (ValueError, RecursionError) as error:
            raise ContentError(f"its attribute {name} is no JSON: {first_line(error)}") from error
        return _checked(f"its attribute {name}", stored, dict)

    def record(self, name: str, kind: type[Record]) -> Record:
        """Return an attribute that is a dataclass in JSON; ContentError if it is something else."""
        return _record(f"its attribute {name}", self.parsed(name), kind)

    def study(self, name: str, kind: type[Record]) -> Record:
        """Return an attribute that `plan.as_stored` made; ContentError if it is something else."""
        stored = self.parsed(name)
        jobs = {option: stored.pop(option) for option in STORED if option in stored}
        return _record(f"its attribute {name}", stored | {"jobs": jobs}, kind)

    def rows(self, name: str, kind: type[Record]) -> tuple[Record, ...]:
        """Return a table's rows as they were before they were written; ContentError if it is another table.

        The last columns may be missing, if they have defaults: files of before there were any have none.
        """
        if name not in self.tables:
            raise ContentError(f"there is no table {name}")
        columns, expected = self.tables[name]["columns"], list(get_type_hints(kind))
        if columns != expected[: len(columns)]:
            raise ContentError(f"a table has the columns {columns}, expected {expected}")
        rows = []
        for number, stored in enumerate(self.tables[name]["rows"]):
            row = _record(f"{name}, row {number:,}", dict(zip(columns, stored, strict=True)), kind)
            _check_measured(f"{name}, row {number:,}", row, columns)
            rows.append(row)
        return tuple(rows)

    @property
    def facts(self) -> Facts:
        """What `workplace.machine_facts` gave when the file was begun."""
        return {name: self.value(name, int) if name == "num_cores" else self.value(name, str) for name in FACTS}

    @property
    def origin(self) -> dict[str, str]:
        """Command, host and time of the first start of the study."""
        return {name: self.value(name, str) for name in ("command", "host", "started")}


def _check_measured(where: str, row: object, columns: Sequence[str]) -> None:
    """Refuse what no job can have measured, and others divide by; a job that failed has measured nothing."""
    for column in columns:
        value = getattr(row, column)
        if column in MEASURED and not getattr(row, "error", "") and not 0 < value < math.inf:
            raise ContentError(f"{where}: {column} cannot be {value!r:.80}")


@contextmanager
def opened(path: str, what: str, names: Sequence[str] = ()) -> Iterator[Contents]:
    """Read a file in a child process; give what it holds, of tables those that are named.

    Parameters
    ----------
    what
        What the file should be, for messages.

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
    """Return what a file says that it is; None if it is no HDF5 file or says nothing."""
    with suppress(DataError), opened(path, "study") as contents:
        return contents.value("format", str)
    return None


def _checked(where: str, value: object, kind: Any) -> Any:
    """Return a value from JSON as one of a type, a dataclass with all its fields; ContentError if it is none."""
    if isinstance(kind, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        kind = next(member for member in get_args(kind) if member is not NoneType)
    if is_dataclass(kind) and isinstance(value, dict):
        return _record(where, value, kind)
    if get_origin(kind) is tuple and isinstance(value, list):
        element = get_args(kind)[0]
        return tuple(_checked(f"{where}, element {place}", part, element) for place, part in enumerate(value))
    if type(value) is (get_origin(kind) or kind) or (kind is float and type(value) is int):
        return value
    raise ContentError(f"{where} cannot be {value!r:.80}")


def _record(where: str, stored: dict[str, Any], kind: Any) -> Any:
    kinds = get_type_hints(kind)
    if unknown := sorted(stored.keys() - kinds.keys()):
        raise ContentError(f"{where} has an unknown {unknown[0]}")
    values = {name: _checked(f"{where}: {name}", value, kinds[name]) for name, value in stored.items()}
    for field in fields(kind):
        if field.name not in values and field.default is field.default_factory is MISSING:
            raise ContentError(f"{where} has no {field.name}")
    return kind(**values)


def check_format(path: str, attributes: Mapping[str, object], what: str, known_format: str, known: int) -> None:
    """Raise DataError if a file is no `what`, or of a version that this program does not know."""
    stated = attributes.get("format")
    if stated != known_format:
        is_of = f", but of format {stated!r}" if stated else ""
        raise DataError(f"{path} is no {what} of mpi_rollout{is_of}; move it away or use another --out")
    version = attributes.get("format_version")
    if version != known:
        raise DataError(f"{path} has format version {version}, this program knows {known}")


def check_same(path: str, what: str, differing: Sequence[str]) -> None:
    """Raise UsageError if there are differences between a stored study and the one that was asked for."""
    if differing:
        raise UsageError(
            f"--out {path}: it is of another {what}: {'; '.join(differing)}; give the same to continue it, "
            "or use another --out"
        )


def differing_options(stored: object, study: object, options: Mapping[str, str]) -> list[str]:
    """Say which fields of a stored study have other values; `options` has their names on the command line."""
    pairs = [(option, getattr(stored, name), getattr(study, name)) for name, option in options.items()]
    return [f"{option} was {_shown(before)}, is {_shown(now)}" for option, before, now in pairs if before != now]


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def differing_facts(stored: Facts, facts: Facts) -> list[str]:
    """Say which facts of machine and program are others than when the file was begun."""
    return [
        f"{name.replace('_', ' ')} was {stored[name] or 'unknown'}, is {value or 'unknown'}"
        for name, value in facts.items()
        if stored[name] != value
    ]


def aligned(rows: Sequence[Sequence[str]], names_left: bool = False) -> list[str]:
    """Lay out cells as columns, flush right; with `names_left` the first column is flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if names_left:
            cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return lines
