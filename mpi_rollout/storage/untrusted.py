"""Opening files that somebody sent: their content can be read, is what it should be, and does not lead out of the file.

Nothing here knows what a file should hold.  Damaged bytes have any value: an error that h5py raises while a file is
read is the file's, any other one is a mistake of ours.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import h5py
import numpy as np

from mpi_rollout.errors import ContentError, DataError, ForeignFileError, NewerFormatError, RolloutError
from mpi_rollout.process.paths import open_regular
from mpi_rollout.storage.filters import MOST_SMALLER, compression_of, register_for
from mpi_rollout.storage.hdf5_format import LIBVER, is_unknown
from mpi_rollout.storage.ownership import why_no_file
from mpi_rollout.storage.shard_files import states_of
from mpi_rollout.storage.torn import SIGNATURE, SUPERBLOCK_NBYTES, Unmarked, may_have_mark
from mpi_rollout.text import first_line, one_line

MOST_ATTRIBUTES = 64  # Reading one takes a millisecond.
ROOM_NBYTES = 2**26  # A dataset may be longer than the file by so much: its writer extends it before it writes rows.
Tell = Callable[[str], None]  # Takes what is being read, in a process that somebody watches.
MOST = 2**63 - 1  # Of numbers that attributes have: they go into 64 bits.
ATTEMPTS = 3  # To read a file that a run is writing.
Content = TypeVar("Content")
Parsed = TypeVar("Parsed", dict[str, Any], list[Any])


def open_unmarked(path: str) -> h5py.File:
    """Open a file for reading, as if its writer had closed it; it may have been left by a killed one."""
    with open(path, "rb", opener=open_regular) as file:
        head = file.read(SUPERBLOCK_NBYTES)
    if head.startswith(SIGNATURE[:-1]) and not may_have_mark(head):  # Others' files.
        return h5py.File(path, "r", locking=False)
    file = h5py.File(Unmarked(path), "r", libver=LIBVER)
    register_for(file)
    return file


@contextmanager
def reading(path: str, tell: Tell) -> Iterator[tuple[h5py.File, Tell]]:
    """Open a file that may be damaged or hostile; also give a function to tell what is read of it.

    DataError if there is no file, or if it cannot be read, here or in the `with` block, or leads to other files.
    """
    if why := why_no_file(path):
        raise ForeignFileError(why)
    doing = ""

    def note(what: str) -> None:
        nonlocal doing
        doing = what
        tell(f"reading {what}")

    note("its superblock")
    try:
        with open_unmarked(path) as file:
            note("its root group")
            yield file, note
    except Exception as error:
        if refusal := _refusal_of(error, path, doing):
            raise refusal from error
        raise


def steadily(path: str, read: Callable[[], Content]) -> Content:
    """Read a file; read it again if that raised DataError, and a run has written the file meanwhile."""
    for _ in range(ATTEMPTS - 1):
        before = _state(path)
        try:
            return read()
        except DataError:
            if _state(path) == before:
                raise
        time.sleep(0.5)
    return read()


def _state(path: str) -> list[tuple[int, int]]:
    return [(state.st_size, state.st_mtime_ns) for state in states_of(path)]


def _refusal_of(error: Exception, path: str, doing: str) -> DataError | None:
    """Return the exception to raise for an error of the file; None if it is a mistake of ours, or says all already."""
    if is_unknown(error.__cause__ if isinstance(error, ContentError) else error):
        return NewerFormatError(
            f"{path} has the format of a newer HDF5 than {h5py.version.hdf5_version}, and is not damaged; read it with "
            f"a newer h5py than {h5py.__version__} ({first_line(error)})"
        )
    if isinstance(error, ContentError):
        return DataError(f"{path}: {error}")
    if isinstance(error, RolloutError) or not is_of_reading(error):
        return None
    if doing == "its superblock":
        return ForeignFileError(f"{path} is not a readable HDF5 file: {first_line(error)}")
    return DataError(f"{path}: cannot read {doing}: {type(error).__name__}: {first_line(error)}")


def is_of_reading(error: Exception) -> bool:
    """Tell whether an error comes from the file or its disk: h5py raised it, or the system."""
    trace, modules = error.__traceback__, set()
    while trace is not None:
        modules.add(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        trace = trace.tb_next
    return isinstance(error, OSError) or "h5py" in modules


def checked_objects(
    file: h5py.File, tell: Tell, names: Collection[str], virtual: Collection[str] = ()
) -> dict[str, h5py.Dataset]:
    """Return all datasets by their paths, after a look at all links, objects and attributes.

    ContentError for what is not in this file, or neither a dataset with one of these names nor a group that has one.
    Datasets called as those in `virtual` must be virtual; they are not returned, and where they lead is not looked at.
    """
    paths = [name.split("/") for name in (*names, *virtual)]
    known = {"/".join(parts[:end]) for parts in paths for end in range(1, len(parts) + 1)}
    seen, waiting, datasets = {_address(file)}, [("", file)], {}
    while waiting:
        place, group = waiting.pop()
        tell(f"the list of objects in {place or '/'}")
        for name in group:
            path = f"{place}/{name}"
            if path[1:] not in known:
                raise ContentError(f"{path} does not belong to it")
            item = linked(group, name, path, path[1:] in virtual)
            tell(f"the attributes of {path}")
            attributes_of(item)
            if _address(item) in seen:
                raise ContentError(f"{path} is a second link to an object, which files of mpi_rollout do not have")
            seen.add(_address(item))
            if isinstance(item, h5py.Group):
                waiting.append((path, item))
            elif path[1:] not in virtual:
                datasets[path[1:]] = item
    return dict(sorted(datasets.items()))


def _address(item: h5py.HLObject) -> int:
    return int(h5py.h5o.get_info(item.id).addr)


def linked(group: h5py.Group, name: str, path: str, is_virtual: bool = False) -> h5py.HLObject:
    """Return the group or dataset of a name, which is in this file; the data of a virtual one are in others."""
    link = group.get(name, getlink=True)
    if link is None:
        raise ContentError(f"there is no {path}")
    if isinstance(link, h5py.ExternalLink):
        raise ContentError(f"{path} is a link to another file, {link.filename}; it is not followed")
    if not isinstance(link, h5py.HardLink):
        raise ContentError(f"{path} is a soft link, which files of mpi_rollout do not have")
    item = group[name]
    if isinstance(item, h5py.Dataset):
        if item.external or (item.is_virtual and not is_virtual):
            raise ContentError(f"the data of {path} are in other files; they are not read")
        if is_virtual and not item.is_virtual:
            raise ContentError(f"{path} has data in this file, they should be in its shards")
    elif not isinstance(item, h5py.Group):
        raise ContentError(f"{path} is neither a group nor a dataset")
    return item


def attributes_of(item: h5py.HLObject) -> dict[str, object]:
    """Read all attributes; ContentError if one cannot be read, or its name is not in the list of them."""
    attributes: dict[str, object] = {}
    stored = item.attrs  # Of a file, each access to it opens the root group.
    if (number := len(stored)) > MOST_ATTRIBUTES:
        raise ContentError(f"{item.name} has {number:,} attributes, more than files of mpi_rollout have")
    for name in stored:
        try:
            attributes[name] = stored[name]
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
    if isinstance(value, np.integer | np.floating) and 0 <= value <= MOST:
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
    return f"is {one_line(repr(value.item() if isinstance(value, np.generic) else value))}"


def table_of(file: h5py.File, name: str) -> np.ndarray:
    """Read all rows of a table; ContentError if it claims more of them than the file has."""
    check_room(file, name, file[name], len(file[name]))
    return np.asarray(file[name][...])


def check_room(file: h5py.File, name: str, dataset: h5py.Dataset, num_rows: int, room: int = ROOM_NBYTES) -> None:
    """Refuse a dataset that claims more bytes in its first rows than its file has, however well they are compressed."""
    row_nbytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=object))
    nbytes, has_nbytes = num_rows * row_nbytes, file.id.get_filesize()
    if nbytes > (has_nbytes + room) * MOST_SMALLER.get(compression_of(dataset), 1):
        raise ContentError(f"{name} claims {num_rows:,} rows, {nbytes:,} bytes, the file has {has_nbytes:,}")
