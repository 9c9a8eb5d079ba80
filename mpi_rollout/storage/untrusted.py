"""Opening files that somebody sent: their content can be read, is what it should be, and does not lead out of the file.

Nothing here knows what a file should hold.  Damaged bytes have any value: an error that h5py raises while a file is
read is the file's, any other one is a mistake of ours.
"""

import io
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import h5py
import numpy as np

from mpi_rollout.errors import ContentError, DataError, RolloutError
from mpi_rollout.storage.codecs import MOST_SMALLER, compression_of, register_for
from mpi_rollout.storage.filters import lookup3
from mpi_rollout.storage.ownership import why_no_file
from mpi_rollout.storage.torn import mended
from mpi_rollout.text import first_line

SIGNATURE = b"\x89HDF\r\n\x1a\n\x03"  # The start of a superblock of version 3, which all files of this program have.
MARK = 11  # Where the superblock says whether somebody writes.
END = slice(28, 36)
CHECKSUM = slice(44, 48)
SUPERBLOCK_NBYTES = 48
MOST_ATTRIBUTES = 64  # Reading one takes a millisecond.
ROOM_NBYTES = 2**26  # A dataset may be longer than the file by so much: its writer extends it before it writes rows.
OpenFile: TypeAlias = h5py.File  # A file that was verified: attributes, and arrays by their paths.
Tell = Callable[[str], None]  # Takes what is being read, in a process that somebody watches.
Parsed = TypeVar("Parsed", dict[str, Any], list[Any])


class Unmarked(io.FileIO):
    """The bytes of a file, without the mark of its writer, and with its end where it is.

    A file that its writer had in SWMR mode can otherwise be read only in that mode.  HDF5 then takes a wrong checksum
    for one that is about to be written, and tries again for hours; without the mark, damage is an error at once.

    A writer says last how far the file has grown; by then, what is committed may already lie beyond what it said.

    OSError if the file has no superblock, or a damaged one, or is shorter than that says.
    """

    def __init__(self, path: str):
        super().__init__(path)
        head = os.pread(self.fileno(), SUPERBLOCK_NBYTES, 0)
        if len(head) < SUPERBLOCK_NBYTES or not head.startswith(SIGNATURE):
            raise OSError("file signature not found")
        if lookup3(head[: CHECKSUM.start]) != head[CHECKSUM]:
            raise OSError("the checksum of its superblock does not fit")
        size, end = os.fstat(self.fileno()).st_size, int.from_bytes(head[END], "little")
        if size < end:
            raise OSError(f"truncated file: it has {size} bytes of {end}")
        self._is_marked = head[MARK] != 0
        head = head[:MARK] + b"\0" + head[MARK + 1 : END.start] + size.to_bytes(8, "little") + head[END.stop : -4]
        self._head = head + lookup3(head)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # Buffer is a type since Python 3.12.
        """Read as any file, but the superblock as it is here, and what a torn write overwrote as it was before."""
        place = self.tell()
        num_read = super().readinto(buffer)
        block = memoryview(buffer).cast("B")[:num_read]
        part = self._head[place : place + num_read]
        if place >= SUPERBLOCK_NBYTES and self._is_marked:
            part = mended(block, self.fileno())
        block[: len(part)] = part
        return num_read


def open_unmarked(path: str) -> OpenFile:
    """Open a file for reading, as if its writer had closed it; it may have been left by a killed one."""
    with open(path, "rb") as file:
        head = file.read(len(SIGNATURE))
    if head[:-1] == SIGNATURE[:-1] and head != SIGNATURE:  # Others' files: no superblock but ours has a mark.
        return h5py.File(path, "r", locking=False)
    file = h5py.File(Unmarked(path), "r", libver="latest")
    register_for(file)
    return file


@contextmanager
def reading(path: str, tell: Tell) -> Iterator[tuple[h5py.File, Tell]]:
    """Open a file that may be damaged or hostile; also give a function to tell what is read of it.

    DataError if there is no file, or if it cannot be read, here or in the `with` block, or leads to other files.
    """
    if why := why_no_file(path):
        raise DataError(why)
    doing = ""

    def note(what: str) -> None:
        nonlocal doing
        doing = what
        tell(f"reading {what}")

    note("its superblock")
    try:
        with open_unmarked(path) as file:
            note("its root group")
            attributes_of(file)
            yield file, note
    except Exception as error:
        if refusal := _refusal_of(error, path, doing):
            raise refusal from error
        raise


def _refusal_of(error: Exception, path: str, doing: str) -> DataError | None:
    """Return the exception to raise for an error of the file; None if it is a mistake of ours, or says all already."""
    if isinstance(error, ContentError):
        return DataError(f"{path}: {error}")
    if isinstance(error, RolloutError) or not is_of_reading(error):
        return None
    if doing == "its superblock":
        return DataError(f"{path} is not a readable HDF5 file: {first_line(error)}")
    return DataError(f"{path}: cannot read {doing}: {type(error).__name__}: {first_line(error)}")


def is_of_reading(error: Exception) -> bool:
    """Tell whether an error comes from the file or its disk: h5py raised it, or the system."""
    trace, modules = error.__traceback__, set()
    while trace is not None:
        modules.add(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        trace = trace.tb_next
    return isinstance(error, OSError) or "h5py" in modules


def check_objects(file: h5py.File, tell: Tell, names: Collection[str]) -> None:
    """Look at all links, objects, attributes; ContentError for what has none of these names, or is not in this file.

    Parameters
    ----------
    names
        The paths of the datasets that the file may have; groups are those that these are in.
    """
    known = {"/".join(parts[:end]) for parts in (name.split("/") for name in names) for end in range(1, len(parts) + 1)}
    seen, waiting = {_address(file)}, [("", file)]
    while waiting:
        place, group = waiting.pop()
        tell(f"the list of objects in {place or '/'}")
        for name in group:
            path = f"{place}/{name}"
            if path[1:] not in known:
                raise ContentError(f"{path} does not belong to it")
            item = _linked(group, name, path)
            tell(f"the attributes of {path}")
            attributes_of(item)
            if _address(item) in seen:
                raise ContentError(f"{path} is a second link to an object, which files of mpi_rollout do not have")
            seen.add(_address(item))
            if isinstance(item, h5py.Group):
                waiting.append((path, item))


def _address(item: h5py.HLObject) -> int:
    return int(h5py.h5o.get_info(item.id).addr)


def _linked(group: h5py.Group, name: str, path: str) -> h5py.HLObject:
    """Return the group or dataset of a name, which is in this file."""
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise ContentError(f"{path} is a link to another file, {link.filename}; it is not followed")
    if not isinstance(link, h5py.HardLink):
        raise ContentError(f"{path} is a soft link, which files of mpi_rollout do not have")
    item = group[name]
    if isinstance(item, h5py.Dataset):
        if item.external or item.is_virtual:
            raise ContentError(f"the data of {path} are in other files; they are not read")
    elif not isinstance(item, h5py.Group):
        raise ContentError(f"{path} is neither a group nor a dataset")
    return item


def attributes_of(item: h5py.HLObject) -> dict[str, object]:
    """Read all attributes; ContentError if one cannot be read, or its name is not in the list of them."""
    attributes: dict[str, object] = {}
    if (number := len(item.attrs)) > MOST_ATTRIBUTES:
        raise ContentError(f"{item.name} has {number:,} attributes, more than files of mpi_rollout have")
    for name in item.attrs:
        try:
            attributes[name] = item.attrs[name]
        except Exception as error:
            if not is_of_reading(error):
                raise
            of = "its" if item.name == "/" else f"{item.name}: the"
            raise ContentError(f"{of} attribute {name} cannot be read: {first_line(error)}") from error
    return attributes


def text(attributes: Mapping[str, object], name: str) -> str:
    """Return an attribute that is text; raise ContentError if it is not."""
    value = attributes.get(name)
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()  # h5py gives bytes that are no text as lone surrogates.
            return value
    except UnicodeError:
        pass
    raise ContentError(f"its attribute {name} {_shown(attributes, name)}, it should be text")


def number(attributes: Mapping[str, object], name: str) -> float:
    """Return an attribute that is a number of 0 or more; raise ContentError if it is not."""
    value = attributes.get(name)
    if isinstance(value, np.integer | np.floating) and value >= 0:
        return value.item()
    raise ContentError(f"its attribute {name} {_shown(attributes, name)}, it should be a number of 0 or more")


def count(attributes: Mapping[str, object], name: str) -> int:
    """Return an attribute that is a whole number of 0 or more; raise ContentError if it is not."""
    value = number(attributes, name)
    if not isinstance(value, int):
        raise ContentError(f"its attribute {name} is {value}, it should be a whole number")
    return value


def parsed(attributes: Mapping[str, object], name: str, kind: type[Parsed]) -> Parsed:
    """Parse an attribute in JSON, a `dict` or a `list`; ContentError if it is something else."""
    try:
        value = json.loads(text(attributes, name))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        word = "an object" if kind is dict else "a list"
        raise ContentError(f"its attribute {name} {_shown(attributes, name)}, it should be {word} in JSON")
    return value


def _shown(attributes: Mapping[str, object], name: str) -> str:
    if name not in attributes:
        return "is missing"
    value = attributes[name]
    return f"is {value.item() if isinstance(value, np.generic) else value!r:.80}".replace("\n", " ")


def object_of(file: h5py.File, name: str, kind: type) -> h5py.HLObject:
    """Return the `h5py.Group` or `h5py.Dataset` of a path; raise ContentError if there is none."""
    if name not in file:
        raise ContentError(f"there is no {name}")
    item = file[name]
    if not isinstance(item, kind):
        raise ContentError(f"{name} should be a {kind.__name__.lower()}")
    return item


def table_of(file: h5py.File, name: str, dtype: np.dtype) -> np.ndarray:
    """Read all rows of a dataset with one axis and these columns; raise ContentError if it has others."""
    dataset = object_of(file, name, h5py.Dataset)
    if dataset.dtype != dtype or dataset.ndim != 1:
        columns = ", ".join(dtype.names or ())
        raise ContentError(f"{name} should be a table of {columns}; got {dataset.dtype} of shape {dataset.shape}")
    check_room(file, name, dataset, len(dataset))
    return np.asarray(dataset[...])


def check_room(file: h5py.File, name: str, dataset: h5py.Dataset, num_rows: int, room: int = ROOM_NBYTES) -> None:
    """Refuse a dataset that claims more bytes in its first rows than its file has.

    They cannot be there, however well they may be compressed.
    """
    row_nbytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=object))
    nbytes, has_nbytes = num_rows * row_nbytes, file.id.get_filesize()
    if nbytes > (has_nbytes + room) * MOST_SMALLER.get(compression_of(dataset), 1):
        raise ContentError(f"{name} claims {num_rows:,} rows, {nbytes:,} bytes, the file has {has_nbytes:,}")
