"""Blocks of HDF5's metadata that were being overwritten when their writer was killed.

Linux ends a write at a SIGKILL between two pages of memory, a loss of power wherever it likes.  The first bytes of the
block are then new, the others, with the checksum at its end, are from before.  What is committed is in both.

The block as it was before is the one that the checksum fits.  What a write changes are few fields: addresses of new
chunks, which were undefined before, and numbers of rows or chunks, which were smaller.  So the changes that it can have
made are taken back, one after the other, until the checksum fits.  Where none does, the block stays as it is, and HDF5
refuses it: where a chunk was replaced, or two numbers changed.

Layouts are those of the HDF5 File Format Specification, version 3.0: IV.A.1.b, object headers of version 2, and VII.D,
extensible arrays.
"""

import io
import os
from collections.abc import Iterator
from itertools import islice

from mpi_rollout.process.paths import open_regular

SIGNATURE = b"\x89HDF\r\n\x1a\n\x03"  # The start of a superblock of version 3, which all files of this program have.
ADDRESS_NBYTES = 8
UNDEFINED = b"\xff" * ADDRESS_NBYTES
MARK = 11  # Where the superblock says whether somebody writes.
END = slice(28, 36)
CHECKSUM = slice(44, 48)
OURS = b"\x08\x08" + bytes(8) + UNDEFINED + (48).to_bytes(8, "little")  # What superblocks of this program all have.
SUPERBLOCK_NBYTES = 48
CHECKSUM_NBYTES = 4
LARGEST_INDEX = 44  # Where the header of an extensible array has one more than the largest index of a chunk.
MOST_ROWS = 4096  # A write makes a number larger by so much at most.
SIZES = range(16, 2**15)  # No block is larger: HDF5 divides what lists more than 1,024 chunks.
MOST_NBYTES = 2**21  # Checksums of so many bytes take a second; somebody's file may ask for any number of them.
WORD = 0xFFFFFFFF
DATASPACE, ATTRIBUTE = 1, 12  # Types of messages in an object header.


class Unmarked(io.FileIO):
    """The bytes of a file, without the mark of its writer, and with its end where it is.

    A file that its writer had in SWMR mode can otherwise be read only in that mode.  HDF5 then takes a wrong checksum
    for one that is about to be written, and tries again for hours; without the mark, damage is an error at once.

    A writer says last how far the file has grown; by then, what is committed may already lie beyond what it said.
    Nothing else but the mark changes in the superblock, so one whose write was torn is known too.

    OSError if the file has no superblock, or a damaged one, or is shorter than that says.
    """

    def __init__(self, path: str):
        super().__init__(path, opener=open_regular)
        head = os.pread(self.fileno(), SUPERBLOCK_NBYTES, 0)
        if len(head) < SUPERBLOCK_NBYTES or not head.startswith(SIGNATURE):
            raise OSError("file signature not found")
        size, end = os.fstat(self.fileno()).st_size, int.from_bytes(head[END], "little")
        self._is_marked = head[MARK] != 0
        if lookup3(head[: CHECKSUM.start]) == head[CHECKSUM]:
            if size < end:
                raise OSError(f"truncated file: it has {size} bytes of {end}")
        elif not self._is_marked or head[9:MARK] + head[MARK + 1 : END.start] + head[END.stop : -4] != OURS:
            raise OSError("the checksum of its superblock does not fit")
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


def may_have_mark(head: bytes) -> bool:
    """Tell from the first bytes of a file whether its superblock is of version 3, also if that number is damaged."""
    return head.startswith(SIGNATURE) or lookup3(SIGNATURE + head[len(SIGNATURE) : CHECKSUM.start]) == head[CHECKSUM]


def is_marked(path: str) -> bool:
    """Tell whether a file was not closed by its writer, who was killed or is at work."""
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        return file.read(SUPERBLOCK_NBYTES)[MARK : MARK + 1] not in (b"", b"\0")


def mended(read: memoryview, fd: int) -> bytes:
    """Return the block of metadata that some bytes begin with as it was before its last write, if that was torn.

    Behind an object header may be something else.  The header of an extensible array is read from the file `fd`.
    Return nothing if no block begins here, if its checksum fits, or if no change that is taken back makes it fit.
    """
    if bytes(read[:4]) not in (b"OHDR", b"EAHD", b"EAIB", b"EADB") or len(read) not in SIZES:
        return b""
    block = bytes(read)
    stop = messages(block).stop if block[:4] == b"OHDR" else len(block) - CHECKSUM_NBYTES
    content, checksum = block[:stop], block[stop : stop + CHECKSUM_NBYTES]
    if len(checksum) < CHECKSUM_NBYTES or lookup3(content) == checksum:
        return b""
    candidates = islice(_before(content, fd), MOST_NBYTES // len(content))
    return next((before for before in candidates if lookup3(before) == checksum), b"")


def _before(content: bytes, fd: int) -> Iterator[bytes]:
    if content[:4] in (b"EADB", b"EAIB"):
        return _with_fewer_chunks(content, fd)
    places = [LARGEST_INDEX] if content[:4] == b"EAHD" else _numbers(content)
    return (before for place in places for before in _with_smaller_number(content, place))


def _with_fewer_chunks(content: bytes, fd: int) -> Iterator[bytes]:
    """Make the addresses of chunks and blocks undefined, the last one first."""
    place = int.from_bytes(content[6:14], "little")
    header = os.pread(fd, 12, place) if place < os.fstat(fd).st_size else b""
    if len(header) < 12 or header[:4] != b"EAHD" or header[6] not in (8, *range(13, 21)):
        return
    element = UNDEFINED + bytes(header[6] - ADDRESS_NBYTES)
    if content[:4] == b"EADB":
        start = 14 + (header[7] + 7) // 8
        fields = [(place, element) for place in range(start, len(content) - len(element) + 1, len(element))]
    else:
        start = 14 + header[8] * len(element)
        fields = [(place, element) for place in range(14, min(start, len(content)), len(element))]
        fields += [(place, UNDEFINED) for place in range(start, len(content) - ADDRESS_NBYTES + 1, ADDRESS_NBYTES)]
    before = bytearray(content)
    for place, undefined in reversed(fields):
        if before[place : place + len(undefined)] != undefined:
            before[place : place + len(undefined)] = undefined
            yield bytes(before)


def _with_smaller_number(content: bytes, place: int) -> Iterator[bytes]:
    number = int.from_bytes(content[place : place + 8], "little")
    for smaller in range(number - 1, max(number - MOST_ROWS, 0) - 1, -1):
        yield content[:place] + smaller.to_bytes(8, "little") + content[place + 8 :]


def messages(block: bytes) -> range:
    """Return where the messages of an object header are."""
    flags = block[5]
    start, size_nbytes = 6 + (flags >> 5 & 1) * 16 + (flags >> 4 & 1) * 4, 1 << (flags & 3)
    start += size_nbytes
    return range(start, start + int.from_bytes(block[start - size_nbytes : start], "little"))


def _numbers(header: bytes) -> Iterator[int]:
    """Where an object header has the number of rows of a dataset, or an attribute that is a number."""
    within, head_nbytes = messages(header), 4 + (header[5] >> 2 & 1) * 2
    place = within.start
    while place + head_nbytes <= within.stop:
        size = int.from_bytes(header[place + 1 : place + 3], "little")
        if header[place] == DATASPACE and size >= 12:
            yield place + head_nbytes + 4
        elif header[place] == ATTRIBUTE and size >= 8:
            yield place + head_nbytes + size - 8
        place += head_nbytes + size


def lookup3(data: bytes) -> bytes:
    """Return HDF5's checksum of metadata: Bob Jenkins' lookup3, `H5_checksum_lookup3` of H5checksum.c."""
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
