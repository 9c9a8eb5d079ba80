"""Files that somebody sent: what is in them can be read, is what it should be, and does not lead out of the file.

Nothing here knows what a file should hold.  Damaged bytes have any value: an error that h5py raises while a file is
read is the file's, any other one is a mistake of ours.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import DataError, RolloutError, first_line
from mpi_rollout.storage.ownership import why_no_file

MOST_GZIP = 1032  # Times smaller gzip makes data, and no more.
Tell = Callable[[str], None]  # Is told what is being read, in a process that somebody watches.
ROOM_NBYTES = 2**26  # A dataset may be that much longer than the file: its writer first extends it, then writes rows.


class ContentError(DataError):
    """What a file holds is not what it should be.  The message does not name the file: `reading` does."""


@contextmanager
def reading(path: str, tell: Tell, open_file: Callable[[str], h5py.File]) -> Iterator[tuple[h5py.File, Tell]]:
    """Open a file that may be damaged or hostile; also gives a function to tell what is read of it.

    Raises
    ------
    DataError
        There is none; or it cannot be read, here or in the `with` block, or leads to other files.
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
        with open_file(path) as file:
            note("its root group")
            attributes_of(file)
            yield file, note
    except ContentError as error:
        raise DataError(f"{path}: {error}") from error
    except RolloutError:
        raise
    except Exception as error:
        if not is_of_reading(error):
            raise
        if doing == "its superblock":
            raise DataError(f"{path} is not a readable HDF5 file: {first_line(error)}") from error
        raise DataError(f"{path}: cannot read {doing}: {type(error).__name__}: {first_line(error)}") from error


def is_of_reading(error: Exception) -> bool:
    """Tell whether an error comes from the file or its disk: h5py raised it, or the system."""
    trace, modules = error.__traceback__, set()
    while trace is not None:
        modules.add(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        trace = trace.tb_next
    return isinstance(error, OSError) or "h5py" in modules


def check_objects(file: h5py.File, tell: Tell) -> None:
    """Look at every link, object and attribute.

    Raises
    ------
    ContentError
        A link is no plain one, or data are in another file: nobody follows it.
    """
    seen, waiting = {_address(file)}, [("", file)]
    while waiting:
        place, group = waiting.pop()
        tell(f"the list of objects in {place or '/'}")
        for name in group:
            path = f"{place}/{name}"
            item = _linked(group, name, path)
            tell(f"the attributes of {path}")
            attributes_of(item)
            if _address(item) in seen:
                raise ContentError(f"{path} is a second link to an object, which files of mpi_rollout do not have")
            seen.add(_address(item))
            if isinstance(item, h5py.Group):
                waiting.append((path, item))


def _address(item: h5py.HLObject) -> int:
    return h5py.h5o.get_info(item.id).addr


def _linked(group: h5py.Group, name: str, path: str) -> h5py.HLObject:
    """The group or dataset of a name, which is in this file."""
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


def attributes_of(item: h5py.HLObject) -> dict[str, Any]:
    """Read all attributes.

    Raises
    ------
    ContentError
        One cannot be read, or its name is not in the list of them.
    """
    attributes: dict[str, Any] = {}
    for name in item.attrs:
        try:
            attributes[name] = item.attrs[name]
        except Exception as error:
            if not is_of_reading(error):
                raise
            of = "its" if item.name == "/" else f"{item.name}: the"
            raise ContentError(f"{of} attribute {name} cannot be read: {first_line(error)}") from error
    return attributes


def text(attributes: Mapping[str, Any], name: str) -> str:
    """An attribute that is text; ContentError otherwise."""
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


def number(attributes: Mapping[str, Any], name: str) -> float:
    """An attribute that is a number of 0 or more; ContentError otherwise."""
    value = attributes.get(name)
    if isinstance(value, np.integer | np.floating) and value >= 0:
        return value.item()
    raise ContentError(f"its attribute {name} {_shown(attributes, name)}, it should be a number of 0 or more")


def count(attributes: Mapping[str, Any], name: str) -> int:
    """An attribute that is a whole number of 0 or more; ContentError otherwise."""
    value = number(attributes, name)
    if not isinstance(value, int):
        raise ContentError(f"its attribute {name} is {value}, it should be a whole number")
    return value


def parsed(attributes: Mapping[str, Any], name: str, kind: type) -> Any:
    """An attribute that is JSON of a `dict` or a `list`; ContentError otherwise."""
    try:
        value = json.loads(text(attributes, name))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        word = "an object" if kind is dict else "a list"
        raise ContentError(f"its attribute {name} {_shown(attributes, name)}, it should be {word} in JSON")
    return value


def _shown(attributes: Mapping[str, Any], name: str) -> str:
    if name not in attributes:
        return "is missing"
    value = attributes[name]
    return f"is {value.item() if isinstance(value, np.generic) else value!r:.80}".replace("\n", " ")


def group_of(file: h5py.File, name: str) -> h5py.Group:
    """A group by its path; ContentError if there is none."""
    return _item(file, name, h5py.Group, "group")


def dataset_of(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset by its path; ContentError if there is none."""
    return _item(file, name, h5py.Dataset, "dataset")


def _item(file: h5py.File, name: str, kind: type, word: str) -> Any:
    if name not in file:
        raise ContentError(f"there is no {name}")
    item = file[name]
    if not isinstance(item, kind):
        raise ContentError(f"{name} should be a {word}")
    return item


def table_of(file: h5py.File, name: str, dtype: np.dtype) -> np.ndarray:
    """All rows of a dataset with one axis and these columns; ContentError if it has others."""
    dataset = dataset_of(file, name)
    if dataset.dtype != dtype or dataset.ndim != 1:
        columns = ", ".join(dtype.names)
        raise ContentError(f"{name} should be a table of {columns}; got {dataset.dtype} of shape {dataset.shape}")
    check_room(file, name, dataset, len(dataset))
    return dataset[...]


def check_room(file: h5py.File, name: str, dataset: h5py.Dataset, num_rows: int, room: int = ROOM_NBYTES) -> None:
    """Refuse a dataset that claims more bytes in its first rows than its file has.

    Raises
    ------
    ContentError
        What it claims cannot be there, however well it may be compressed.
    """
    row_nbytes = dataset.dtype.itemsize * int(np.prod(dataset.shape[1:], dtype=object))
    nbytes, has_nbytes = num_rows * row_nbytes, file.id.get_filesize()
    if nbytes > (has_nbytes + room) * (MOST_GZIP if dataset.compression == "gzip" else 1):
        raise ContentError(f"{name} claims {num_rows:,} rows, {nbytes:,} bytes, the file has {has_nbytes:,}")
