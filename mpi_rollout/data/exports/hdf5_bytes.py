"""The bytes of HDF5's objects, as its format specification has them (version 1 of object headers: no checksums).

HDF5 itself takes some 20 us to make an object, and an episode has a dozen of them.  What is made here every version of
HDF5 reads, and adds to.  Datatypes are encoded by HDF5.
"""

import struct

import h5py
import numpy as np

UNDEFINED = 2**64 - 1  # An address of nothing.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_NBYTES = 96
ROOT_NBYTES = 40
LEAF_K, NODE_K = 32, 64  # Half of the links in a node of names, and of the children in a node of the tree above.
SPACE, LINK_INFO, TYPE, FILL, LINK, LAYOUT, GROUP_INFO, ATTRIBUTE, SYMBOLS = 1, 2, 3, 5, 6, 8, 10, 12, 17
LINK_NAME = 3  # Where the name begins in the body of a LINK; its address follows.
DIMS = 8  # Where the first axis of a SPACE is.
ADDRESS, SIZE = 2, 10  # In a LAYOUT.
BODY = 8  # Of a message.


def padded(data: bytes) -> bytes:
    """Add zeros up to a multiple of 8 bytes."""
    return data + bytes(-len(data) % 8)


def message(kind: int, body: bytes) -> bytes:
    """Return a message of an object header."""
    return struct.pack("<HHB3x", kind, len(padded(body)), 0) + padded(body)


def header(messages: list[bytes]) -> bytes:
    """Return the header of an object with these messages."""
    return struct.pack("<BxHII4x", 1, len(messages), 1, sum(map(len, messages))) + b"".join(messages)


def dataspace(shape: tuple[int, ...]) -> bytes:
    """Return the body of a message about the shape of an array."""
    return struct.pack("<BBB5x", 1, len(shape), 0) + struct.pack(f"<{len(shape)}Q", *shape)


def datatype(dtype: np.dtype) -> bytes:
    """Return the body of a message about a type, as HDF5 encodes it."""
    encoded: bytes = h5py.h5t.py_create(dtype, logical=True).encode()
    return encoded[2:]  # After the kind of the message, and the version of the encoding.


def dataset_messages(dtype: np.dtype, row_shape: tuple[int, ...]) -> list[bytes]:
    """Return the messages of a contiguous array; its first axis, address and size are still 0."""
    fill = struct.pack("<BBBB", 2, 2, 1, 0)  # Space is taken when data are written, and never filled.
    layout = struct.pack("<BBQQ", 3, 1, 0, 0)
    bodies = ((SPACE, dataspace((0, *row_shape))), (TYPE, datatype(dtype)), (FILL, fill), (LAYOUT, layout))
    return [message(kind, body) for kind, body in bodies]


def group_messages(names: list[str]) -> list[bytes]:
    """Return the messages of a group with links to objects, whose addresses are still 0."""
    info = message(LINK_INFO, struct.pack("<BBQQ", 0, 0, UNDEFINED, UNDEFINED))
    links = [message(LINK, link(name.encode())) for name in names]
    return [info, message(GROUP_INFO, bytes(2)), *links]


def link(name: bytes) -> bytes:
    """Return the body of a message about a hard link."""
    return struct.pack("<BBB", 1, 0, len(name)) + name + bytes(8)


def attribute(name: str, dtype: np.dtype) -> bytes:
    """Return the message of an attribute that is one number, which is last, and still 0."""
    parts = [name.encode() + b"\0", datatype(dtype), dataspace(())]
    sizes = struct.pack("<BxHHH", 1, *map(len, parts))
    return message(ATTRIBUTE, sizes + b"".join(map(padded, parts)) + bytes(dtype.itemsize))


def superblock(root: int, tree: int, heap: int, end: int) -> bytes:
    """Return the first bytes of a file: where the root group is, and where the file ends."""
    versions = struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, LEAF_K, NODE_K, 0)
    addresses = struct.pack("<4Q", 0, UNDEFINED, end, UNDEFINED)
    return SIGNATURE + versions + addresses + struct.pack("<QQII2Q", 0, root, 1, 0, tree, heap)


def root_header(tree: int, heap: int) -> bytes:
    """Return the header of a group of any number of links."""
    return header([message(SYMBOLS, struct.pack("<2Q", tree, heap))])


def links_index(names: np.ndarray, addresses: np.ndarray, start: int) -> tuple[bytes, int, int]:
    """Return the index of a group's links that begins at an address; and the addresses of its tree and its names.

    Parameters
    ----------
    names
        Of type S, at least one, no two the same.
    """
    order = np.argsort(names)
    names, addresses = names[order], addresses[order]
    room = names.dtype.itemsize // 8 * 8 + 8  # For a name and a zero.
    places = 8 + room * np.arange(len(names), dtype=np.uint64)  # Before them is the empty name.
    text = bytes(8) + names.astype(f"S{room}").tobytes()
    heap = b"HEAP" + struct.pack("<B3xQQQ", 0, len(text), 1, start + 32) + text  # 1: no room is free.
    parts, end = [heap], start + len(heap)
    children, keys, level = _name_nodes(places, addresses), places[_lasts(len(places), 2 * LEAF_K)], 0
    child_nbytes = children.shape[1]
    while True:
        parts.append(children.tobytes())
        child_addresses = end + child_nbytes * np.arange(len(children), dtype=np.uint64)
        end += children.nbytes
        if level and len(children) == 1:
            return b"".join(parts), int(child_addresses[0]), start
        children = _tree_nodes(child_addresses, keys, level, end)
        keys, level = keys[_lasts(len(keys), 2 * NODE_K)], level + 1
        child_nbytes = children.shape[1]


def _lasts(number: int, per_node: int) -> np.ndarray:
    """Return the places of the last elements of nodes."""
    return np.minimum(np.arange(per_node, number + per_node, per_node), number) - 1


def _name_nodes(places: np.ndarray, addresses: np.ndarray) -> np.ndarray:
    """Return the nodes of sorted names, an array of bytes each."""
    per_node = 2 * LEAF_K
    entry = np.dtype([("name", "<u8"), ("address", "<u8"), ("cache", "<u4", 2), ("scratch", "<u8", 2)])
    node = np.dtype([("signature", "S4"), ("version", "u1", 2), ("count", "<u2"), ("entries", entry, per_node)])
    nodes = np.zeros(-(-len(places) // per_node), node)
    nodes["signature"], nodes["version"] = b"SNOD", (1, 0)
    nodes["count"] = np.diff(_lasts(len(places), per_node), prepend=-1)
    entries = np.zeros(len(nodes) * per_node, entry)
    entries["name"][: len(places)], entries["address"][: len(places)] = places, addresses
    nodes["entries"] = entries.reshape(len(nodes), per_node)
    return nodes.view(np.uint8).reshape(len(nodes), -1)


def _tree_nodes(children: np.ndarray, keys: np.ndarray, level: int, start: int) -> np.ndarray:
    """Return the nodes above others, an array of bytes each; `keys` has the last name of each child."""
    per_node = 2 * NODE_K
    pair = np.dtype([("key", "<u8"), ("child", "<u8")])
    head = [("signature", "S4"), ("kind", "u1"), ("level", "u1"), ("count", "<u2"), ("left", "<u8"), ("right", "<u8")]
    node = np.dtype([*head, ("pairs", pair, per_node), ("last", "<u8")])
    nodes = np.zeros(-(-len(children) // per_node), node)
    nodes["signature"], nodes["level"] = b"TREE", level
    nodes["count"] = np.diff(_lasts(len(children), per_node), prepend=-1)
    addresses = start + node.itemsize * np.arange(len(nodes), dtype=np.uint64)
    nodes["left"], nodes["right"] = np.append(UNDEFINED, addresses[:-1]), np.append(addresses[1:], UNDEFINED)
    pairs = np.zeros(len(nodes) * per_node + 1, pair)
    pairs["key"][1 : len(keys) + 1], pairs["child"][: len(children)] = keys, children
    nodes["pairs"] = pairs[:-1].reshape(len(nodes), per_node)
    nodes["last"] = pairs["key"][per_node::per_node]
    return nodes.view(np.uint8).reshape(len(nodes), -1)
