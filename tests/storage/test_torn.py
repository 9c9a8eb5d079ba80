"""Metadata that were being overwritten at a kill are read as they were before, or refused."""

import random
from collections import Counter
from pathlib import Path

import h5py
import pytest
from gymnasium import spaces
from written_data import PLAIN, SMALL, Feed, ending, flip, quiet, what_is_committed, written

from mpi_rollout.errors import DataError
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.torn import (
    CHECKSUM,
    CHECKSUM_NBYTES,
    MARK,
    MOST_NBYTES,
    SUPERBLOCK_NBYTES,
    Unmarked,
    lookup3,
    mended,
    messages,
)
from mpi_rollout.storage.untrusted import open_unmarked
from mpi_rollout.storage.verification import verify

SIGNATURES = {b"OHDR": "header", b"EAHD": "array", b"EAIB": "index", b"EADB": "chunks"}
Blocks = set[tuple[int, int]]  # Where they begin, and where their checksums do.


class Noted(Unmarked):
    """A file that notes which blocks of metadata HDF5 reads."""

    blocks: Blocks

    def readinto(self, buffer: memoryview) -> int:
        place, num_read = self.tell(), super().readinto(buffer)
        block = bytes(buffer[:num_read])
        if block[:4] in SIGNATURES:
            size = messages(block).stop if block[:4] == b"OHDR" else num_read - CHECKSUM_NBYTES
            self.blocks.add((place, place + size))
        return num_read


def read(path: Path) -> tuple[dict, Blocks]:
    noted = Noted(str(path))
    noted.blocks = set()
    with h5py.File(noted, "r", libver="latest") as file:
        return what_is_committed(file), noted.blocks


def torn_ones(before: bytes, after: bytes, blocks: Blocks, draws: random.Random) -> list[tuple[str, bytes]]:
    """A file in which the first bytes of one block are already what they are later; one for each block."""
    torn = []
    for start, stop in sorted(blocks):
        if before[start : start + 4] not in SIGNATURES:
            continue  # It has been made since.
        changed = [place for place in range(start, stop) if before[place] != after[place]]
        if changed:
            cut = draws.choice(changed) + 1
            torn.append((SIGNATURES[before[start : start + 4]], before[:start] + after[start:cut] + before[cut:]))
    return torn


def outcomes(folder: Path, space: spaces.Space, num_rows: int, every: int) -> Counter[tuple[str, str]]:
    """How often each kind of block was torn, and what came of it, in a run that commits so often."""
    writer, draws = Feed(space).writer(folder / "run.h5", num_rows), random.Random(0)
    torn_path, counts, before, expected = folder / "torn.h5.part", Counter(), b"", {}
    for step in Feed(space).fill(writer, 9 * every, range(0, 1000, every)):
        writer.drain()
        if step % every:
            continue
        after = (folder / "run.h5.part").read_bytes()
        following, blocks = read(folder / "run.h5.part")
        for kind, content in torn_ones(before, after, blocks, draws) if before else []:
            torn_path.write_bytes(content)
            try:
                found, _ = read(torn_path)
            except (OSError, RuntimeError, KeyError):  # What h5py makes of an error that it meets on its way.
                counts[kind, "refused"] += 1
                continue
            assert found == expected, kind
            counts[kind, "mended"] += 1
        before, expected = after, following
    writer.discard()
    return counts


def test_of_whole_chunks_all_is_read_as_it_was(tmp_path: Path):
    """But short headers in which two numbers change at once, as where HDF5 has made room for more chunks."""
    counts = outcomes(tmp_path, SMALL, 1, 1)
    assert counts["chunks", "refused"] == counts["index", "refused"] == 0
    assert counts["chunks", "mended"] > 20 and counts["index", "mended"] > 5
    for kind in ("header", "array"):
        assert counts[kind, "mended"] > 2 * counts[kind, "refused"]  # How many depends on when the writer commits.


def test_where_chunks_were_replaced_nothing_wrong_is_read(tmp_path: Path):
    counts = outcomes(tmp_path, SMALL, 4, 3)
    assert counts["chunks", "mended"] > 2 < counts["chunks", "refused"]


def test_a_superblock_that_was_torn_anywhere_is_read(tmp_path: Path):
    """Of a start that marks a file of an earlier one, and of a writer whose file has grown."""
    feed, path, torn = Feed(), tmp_path / "run.h5.part", tmp_path / "torn.h5.part"
    writer = feed.writer(tmp_path / "run.h5", 8)
    for _ in feed.fill(writer, 21, {21}):
        pass
    before = Path(writer.finish(ending(21, complete=False))).read_bytes()
    writer.release()
    writer = feed.writer(tmp_path / "run.h5", 8, num_past=21)
    for _ in feed.fill(writer, 40, {40}, 21):
        pass
    writer.drain()
    after = path.read_bytes()
    writer.discard()
    marked = before[:MARK] + after[MARK : MARK + 1] + before[MARK + 1 : CHECKSUM.start]
    marked += lookup3(marked)
    for content, old, new in ((before, before, marked), (after, marked, after)):
        for cut in range(SUPERBLOCK_NBYTES + 1):
            torn.write_bytes(new[:cut] + old[cut:SUPERBLOCK_NBYTES] + content[SUPERBLOCK_NBYTES:])
            with open_unmarked(str(torn)) as file:
                assert file["trajectories"].attrs["num_steps"] == (21 if content is before else 40), cut


@pytest.mark.parametrize("place", [8, 9, 12, 20, 36])
def test_a_superblock_with_other_damage_is_refused(tmp_path: Path, place: int):
    path = written(tmp_path, "running")
    flip(path, place)
    with pytest.raises(DataError, match="not a readable HDF5 file"):
        verify(quiet, str(path))


def test_damage_that_no_writer_does_is_refused(tmp_path: Path):
    """The same block of a file whose last address is wrong, not new."""
    feed, path = Feed(PLAIN), tmp_path / "run.h5.part"
    writer = feed.writer(tmp_path / "run.h5", 1)
    for _ in feed.fill(writer, 20):
        pass
    writer.drain()
    _, blocks = read(path)
    content = bytearray(path.read_bytes())
    writer.discard()
    start = max(start for start, _ in blocks if content[start : start + 4] == b"EADB")
    content[start + 18] ^= 1  # Of its first address.
    path.write_bytes(content)
    with pytest.raises(DataError, match="HDF5's index of its chunks cannot be read"):
        verify(quiet, str(path))
    report = recover(quiet, str(path), str(tmp_path / "new.h5"), str(tmp_path / "temporary"))
    assert report["num_steps"] == 19


def test_nothing_that_a_file_may_have_there_takes_long_or_fails(tmp_path: Path):
    """Also where the data of a chunk begin like metadata; none of these has its checksum."""
    draws, path = random.Random(0), tmp_path / "any"
    header = b"EAHD" + bytes((0, 1, 20, 32, 4, 16, 4, 10)) + bytes(60)
    with open(path, "w+b") as file:
        file.write(header)
        file.flush()
        for number in range(20):
            head = draws.choice(sorted(SIGNATURES)) + draws.randbytes(2)
            place = draws.choice((bytes(8), draws.randbytes(8)))
            block = head + place + draws.randbytes(draws.choice((0, 1, 2, 60, 500, 5000 if number < 1 else 60)))
            assert mended(memoryview(block), file.fileno()) == b""
        assert mended(memoryview(b"EADB" + bytes(MOST_NBYTES)), file.fileno()) == b""
