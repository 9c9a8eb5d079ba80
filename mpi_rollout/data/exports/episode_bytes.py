"""Writing the groups of episodes as bytes: all headers of many episodes are one NumPy array.

The objects of two episodes differ in few numbers: addresses, lengths, attributes.  So where each episode lies follows
from the lengths of those before, and several ranks write into one file, each into a place of its own.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Tree
from mpi_rollout.data.exports import hdf5_bytes as hdf5

START = 2048  # Of the first episode; before it is the root group.
BATCH = 1024
BATCH_NBYTES = 2**22
LARGE_NBYTES = 2**20
INT, FLOAT = np.dtype("<i8"), np.dtype("<f8")
ATTRIBUTES = {"id": INT, "total_steps": INT, "seed": INT} | dict.fromkeys(
    ("rewards_sum", "rewards_mean", "rewards_std", "rewards_max", "rewards_min"), FLOAT
)


class Template:
    """The objects of an episode, but for the numbers that differ.

    Parameters
    ----------
    columns
        The members of an episode's group: arrays in dicts and tuples.
    length
        The number of steps of that episode.
    has_seed
        Whether there is an attribute of that name.

    Attributes
    ----------
    group
        Where the header of the group is.
    """

    def __init__(self, columns: Mapping[str, Tree], length: int, has_seed: bool):
        self._bytes = bytearray()
        self._links: list[tuple[int, int]] = []  # Where an address is, and of what.
        self._arrays: list[tuple[int, int, int]] = []  # Where the first axis is, and the layout; rows more than steps.
        self._row_nbytes: list[int] = []
        self._values: dict[str, int] = {}
        names = [name for name in ATTRIBUTES if has_seed or name != "seed"]
        self.group = self._group(
            dict(columns), length, [(name, hdf5.attribute(name, ATTRIBUTES[name])) for name in names]
        )
        self._header = np.frombuffer(bytes(self._bytes), np.uint8)

    def _tree(self, tree: Tree, length: int) -> int:
        if isinstance(tree, np.ndarray):
            return self._dataset(tree, length)
        return self._group(
            tree if isinstance(tree, dict) else {f"_index_{i}": part for i, part in enumerate(tree)}, length
        )

    def _dataset(self, array: np.ndarray, length: int) -> int:
        messages = hdf5.dataset_messages(array.dtype, array.shape[1:])
        place = self._append(messages)
        places = self._places(place, messages)
        self._arrays.append((places[0] + hdf5.DIMS, places[3], len(array) - length))
        self._row_nbytes.append(array[:1].nbytes)
        return place

    def _group(
        self, members: dict[str, Tree], length: int, attributes: list[tuple[str, bytes]] | tuple[()] = ()
    ) -> int:
        children = [self._tree(part, length) for part in members.values()]
        messages = hdf5.group_messages([*members]) + [each for _, each in attributes]
        place = self._append(messages)
        places = self._places(place, messages)
        for name, child, at in zip(members, children, places[2:], strict=False):
            self._links.append((at + hdf5.LINK_NAME + len(name.encode()), child))
        for (name, each), at in zip(attributes, places[2 + len(members) :], strict=True):
            self._values[name] = at + len(each) - hdf5.BODY - 8
        return place

    def _append(self, messages: list[bytes]) -> int:
        place = len(self._bytes)
        self._bytes += hdf5.header(messages)
        return place

    def _places(self, place: int, messages: list[bytes]) -> list[int]:
        """Return where the bodies of messages are."""
        sizes = np.array([0, *map(len, messages)])
        return [int(each) for each in place + 16 + hdf5.BODY + np.cumsum(sizes)[:-1]]

    def nbytes(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many bytes episodes of these lengths take."""
        return len(self._header) + self._sizes(lengths)[1].sum(axis=0)

    def _sizes(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of each array of episodes, and with the zeros after it."""
        more = np.array([more for *_, more in self._arrays])
        sizes = (lengths[None] + more[:, None]) * np.array(self._row_nbytes)[:, None]
        return sizes, sizes + -sizes % 8

    def headers(self, starts: np.ndarray, lengths: np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the headers of episodes that begin at addresses, as rows of bytes."""
        rows = np.tile(self._header, (len(starts), 1))

        def put(place: int, numbers: np.ndarray) -> None:
            rows[:, place : place + 8] = np.ascontiguousarray(numbers).view(np.uint8).reshape(-1, 8)

        for place, child in self._links:
            put(place, starts + child)
        for name, place in self._values.items():
            put(place, values[name].astype(ATTRIBUTES[name]))
        sizes, rooms = self._sizes(lengths)
        addresses = starts + len(self._header) + np.cumsum(rooms, axis=0) - rooms
        for (axis, layout, more), size, address in zip(self._arrays, sizes, addresses, strict=True):
            put(axis, lengths + more)
            put(layout + hdf5.ADDRESS, np.where(size > 0, address, -1))
            put(layout + hdf5.SIZE, size)
        return rows


class EpisodeBytes:
    """Appends episodes to an open file, from a place on.

    Attributes
    ----------
    numbers, addresses
        The numbers of the episodes, and where their groups are, in parts.
    end
        Where the next episode begins.
    """

    def __init__(self, descriptor: int, start: int):
        self._descriptor, self.end = descriptor, start
        self.numbers: list[np.ndarray] = []
        self.addresses: list[np.ndarray] = []
        self._waiting: list[tuple[Template, list[np.ndarray], dict[str, Any]]] = []
        self._nbytes = 0

    def append(self, template: Template, columns: Mapping[str, Tree], values: dict[str, Any]) -> None:
        """Take an episode.  Its arrays must stay as they are until `flush`, which may be now."""
        if self._waiting and self._waiting[-1][0] is not template:
            self.flush()
        arrays = [array for tree in columns.values() for array in _arrays_of(tree)]
        self._waiting.append((template, arrays, values))
        self._nbytes += sum(array.nbytes for array in arrays)
        if len(self._waiting) >= BATCH or self._nbytes > BATCH_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Write the episodes that wait."""
        if not self._waiting:
            return
        template = self._waiting[0][0]
        values = {name: np.array([each[name] for *_, each in self._waiting]) for name in self._waiting[0][2]}
        lengths = values["total_steps"]
        sizes = template.nbytes(lengths)
        starts = self.end + np.cumsum(sizes) - sizes
        headers = template.headers(starts, lengths, values)
        parts = (
            part
            for row, (_, arrays, _) in zip(headers, self._waiting, strict=True)
            for part in (row, *(part for array in arrays for part in (array, bytes(-array.nbytes % 8))))
        )
        write_at(self._descriptor, parts, self.end)
        self.numbers.append(values["id"])
        self.addresses.append(starts + template.group)
        self.end += int(sizes.sum())
        self._waiting, self._nbytes = [], 0


def _arrays_of(tree: Tree) -> list[np.ndarray]:
    if isinstance(tree, np.ndarray):
        return [tree]
    return [array for part in (tree.values() if isinstance(tree, dict) else tree) for array in _arrays_of(part)]


def write_at(descriptor: int, parts: Iterable[bytes | np.ndarray], place: int) -> None:
    """Write parts one after the other into a file; small ones together, large ones without a copy."""
    small = bytearray()
    for part in parts:
        nbytes = len(part) if isinstance(part, bytes) else part.nbytes
        if len(small) + nbytes > LARGE_NBYTES:
            place = _write(descriptor, small, place)
            small = bytearray()
        if isinstance(part, bytes):
            small += part
        elif nbytes > LARGE_NBYTES:
            place = _write(descriptor, np.ascontiguousarray(part).data.cast("B"), place)
        else:
            small += part.tobytes()
    _write(descriptor, small, place)


def _write(descriptor: int, data: bytearray | memoryview, place: int) -> int:
    """Write all bytes; return the place after them."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, place)
        left, place = left[written:], place + written
    return place


def finish(descriptor: int, numbers: np.ndarray, addresses: np.ndarray, end: int) -> None:
    """Make the root group of a file whose episodes end at an address."""
    names = np.array([b"episode_%d" % number for number in numbers.tolist()])
    index, tree, heap = hdf5.links_index(names, addresses.astype(np.uint64), end)
    write_at(descriptor, [index], end)
    root = hdf5.SUPERBLOCK_NBYTES
    write_at(descriptor, [hdf5.superblock(root, tree, heap, end + len(index)) + hdf5.root_header(tree, heap)], 0)
