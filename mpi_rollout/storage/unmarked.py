"""Opening what a writer has left, as if it had closed it: damage is then an error at once.

A file that its writer had in SWMR mode can otherwise be read only in that mode, in which HDF5 takes a checksum that
does not fit for one that is about to be written, and tries again for hours.
"""

import io
import os

import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n\x03"  # Of a superblock of version 3, which all files of this program have.
MARK = 11  # Where it says whether somebody writes.
END = slice(28, 36)
CHECKSUM = slice(44, 48)
SUPERBLOCK_NBYTES = 48
WORD = 0xFFFFFFFF


class Unmarked(io.FileIO):
    """The bytes of a file, with the mark of its writer taken off, and its end where it is.

    A writer says last how far the file has grown; by then, what is committed may already lie beyond what it said.

    Raises
    ------
    OSError
        It has no superblock, or a damaged one, or is shorter than that says.
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
        head = head[:MARK] + b"\0" + head[MARK + 1 : END.start] + size.to_bytes(8, "little") + head[END.stop : -4]
        self._head = head + lookup3(head)

    def readinto(self, buffer: memoryview) -> int:
        place = self.tell()
        count = super().readinto(buffer)
        if place < SUPERBLOCK_NBYTES:
            part = self._head[place : place + count]
            memoryview(buffer).cast("B")[: len(part)] = part
        return count


def open_unmarked(path: str) -> h5py.File:
    """Open a file for reading; it may have been left by a killed writer.

    Raises
    ------
    OSError
        It cannot be.
    """
    with open(path, "rb") as file:
        head = file.read(len(SIGNATURE))
    if head[:-1] == SIGNATURE[:-1] and head != SIGNATURE:  # Others' files: no superblock but ours has a mark.
        return h5py.File(path, "r", locking=False)
    return h5py.File(Unmarked(path), "r", libver="latest")


def lookup3(data: bytes) -> bytes:
    """The checksum that HDF5 has for its metadata: Bob Jenkins' lookup3, `H5_checksum_lookup3` in H5checksum.c."""
    a = b = c = (0xDEADBEEF + len(data)) & WORD
    data += bytes(-len(data) % 12)
    for start in range(0, len(data), 12):
        a, b, c = (
            (value + int.from_bytes(data[start + at : start + at + 4], "little")) & WORD
            for value, at in ((a, 0), (b, 4), (c, 8))
        )
        a, b, c = _final(a, b, c) if start + 12 == len(data) else _mix(a, b, c)
    return c.to_bytes(4, "little")


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (4, 6, 8, 16, 19, 4):  # The three words change places each time.
        a = ((a - c) & WORD) ^ _rotated(c, bits)
        c = (c + b) & WORD
        a, b, c = b, c, a
    return a, b, c


def _final(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotated(b, bits)) & WORD
        a, b, c = b, c, a
    return c, a, b  # Seven turns are one too many.


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & WORD
