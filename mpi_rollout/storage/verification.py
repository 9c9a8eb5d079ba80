"""Whether a file is what it says: every chunk of it is read, every statement in it that follows from others checked.

Chunks are read from where HDF5's index says that they are, not through HDF5: so it is known which are damaged.
"""

import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import RESULTS
from mpi_rollout.errors import DataError, counted
from mpi_rollout.storage.checksum import CHECKSUM_NBYTES, fletcher32
from mpi_rollout.storage.chunks import places
from mpi_rollout.storage.episodes import make_table, stored_results
from mpi_rollout.storage.filters import Filters
from mpi_rollout.storage.objects import (
    Tell,
    attributes_of,
    check_room,
    count,
    group_of,
    number,
    parsed,
    table_of,
    text,
)
from mpi_rollout.storage.reader import (
    check_attributes,
    committed_faults,
    leaf_datasets,
    num_steps_of,
    opened,
    steadily,
)
from mpi_rollout.storage.schema import EPISODE, FAULT, INTERVAL, LIMIT, RANK
from mpi_rollout.storage.values import ValueChecks, described_leaves

NUM_NAMED = 3  # Damaged chunks that a message names.


def verify(tell: Tell, path: str) -> dict[str, Any]:
    """Check all of a file, complete or not; return what there is, JSON-able.

    Raises
    ------
    DataError
        Something is wrong; the message says what and where.
    """
    return steadily(path, lambda: _verify(tell, path))


def _verify(tell: Tell, path: str) -> dict[str, Any]:
    with verifying(path, tell) as verification:
        return verification.everything()


def check_chunks(path: str) -> None:
    """Check what a commit cannot have spoiled by itself: attributes, lengths, every chunk's checksum."""
    with verifying(path, lambda doing: None) as verification:
        verification.lengths()
        verification.chunks()


@contextmanager
def verifying(path: str, tell: Tell) -> Iterator["Verification"]:
    """Open a file of this program that may be damaged.

    Raises
    ------
    DataError
        It is not one; or it cannot be read, here or in the `with` block.
    """
    with opened(path, tell) as (file, note):
        yield Verification(file, path, note)


class Verification:
    """The checks of one file.  All raise DataError."""

    def __init__(self, file: h5py.File, path: str, tell: Tell):
        self.file, self.path, self.tell = file, path, tell
        self.root = attributes_of(file)
        self.is_complete = bool(text(self.root, "finished").strip())
        self.is_sealed = self.is_complete or "recovered" in self.root
        self.has_trajectories = "trajectories" in file
        self.num_steps = num_steps_of(file) if self.has_trajectories else 0
        self.num_chunks = self.nbytes = 0
        self._values: ValueChecks | None = None
        self._room = np.empty(0, np.uint8)

    def everything(self) -> dict[str, Any]:
        self.attributes()
        self.structure()
        self.lengths()
        self.chunks(counts_values=self.has_trajectories)
        self.values()
        num_episodes = self.episodes() if self.has_trajectories else 0
        return {
            "file": self.path,
            "complete": self.is_complete,
            "recovered": self.is_sealed and not self.is_complete,
            "num_steps": self.num_steps,
            "episodes": num_episodes,
            "chunks": self.num_chunks,
            "nbytes": self.nbytes,
            "wrong_values": [] if self._values is None else self._values.found,
        }

    def take_only(self, num_steps: int) -> None:
        """Check no more than the first steps."""
        self.is_sealed = self.is_sealed and num_steps == self.num_steps
        self.num_steps = num_steps

    def refuse(self, what: str) -> None:
        raise DataError(f"{self.path}: {what}")

    def attributes(self) -> None:
        """Those of the root are as they were written."""
        self.tell("attributes")
        if "digest" not in self.root:
            self.refuse("there is no digest of its attributes: an earlier version wrote it, without checksums")
        check_attributes(self.root)
        self.config = RolloutConfig.from_json(self.root["config"], self.path)
        throughput = attributes_of(group_of(self.file, "throughput"))
        count(throughput, "env_steps"), number(throughput, "seconds")

    def structure(self) -> None:
        """The datasets are those that follow from configuration and spaces."""
        self.tell("the list of its datasets")
        found, expected = leaf_datasets(self.file), self._expected()
        for name, (dtype, shape) in expected.items():
            if name not in found:
                self.refuse(f"there is no {name}")
            if (got := (found[name].dtype, (found[name].shape or ())[1:])) != (dtype, shape):
                self.refuse(f"{name} should be {dtype} {shape} a row, got {got[0]} {got[1]}")
            if found[name].chunks is None or found[name].chunks[2:] != tuple(max(size, 1) for size in shape[1:]):
                self.refuse(f"{name} is not cut into chunks of whole rows")
            if not found[name].fletcher32:
                self.refuse(f"{name} has no checksums")
            compression = self.config.compression if name.startswith("trajectories/") else "none"
            if (got := found[name].compression or "none") != compression:
                self.refuse(f"{name} should have the compression {compression}, got {got}")
        if unknown := sorted(found.keys() - expected.keys()):
            self.refuse(f"there is a dataset {unknown[0]} that does not belong to it")

    def _expected(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Of every dataset the dtype and the shape without its first axis."""
        expected = {"throughput/intervals": (INTERVAL, ()), "throughput/limit": (LIMIT, ()), "faults": (FAULT, ())}
        expected["throughput/ranks"] = RANK, ()
        if not self.config.trajectories:
            return expected
        expected["episodes"] = EPISODE, ()
        spaces = parsed(self.root, "spaces", dict)
        groups = {"": RESULTS}
        for name in ("observation", "action"):
            groups[f"{name}s"] = tuple(leaf for leaf, *_ in described_leaves(spaces.get(name)))
        for group, leaves in groups.items():
            for leaf in leaves:
                path = f"trajectories/{group}/{leaf.path}".replace("//", "/").rstrip("/")
                expected[path] = leaf.dtype, (self.config.num_envs, *leaf.shape)
        return expected

    def lengths(self) -> None:
        """Datasets have as many rows as steps are committed; in a file that is not sealed they may have more."""
        for name, dataset in self._trajectories().items():
            expected, got = self._num_rows(name), len(dataset)
            if got < expected or (got > expected and self.is_sealed):
                self.refuse(f"trajectories/{name} has {got:,} rows, expected {expected:,}: one for each step")
        num_ranks = int(self.root.get("num_ranks", len(self.file["throughput/ranks"])))
        if len(self.file["throughput/ranks"]) != num_ranks:
            self.refuse(
                f"throughput/ranks has {counted(len(self.file['throughput/ranks']), 'row')} for "
                f"{counted(num_ranks, 'rank')}"
            )

    def _num_rows(self, name: str) -> int:
        """The rows that count of a dataset of /trajectories; before the first commit none does."""
        is_begun = self.num_steps > 0 or self.is_sealed
        return self.num_steps + (name.startswith("observations") and is_begun)

    def _trajectories(self) -> dict[str, h5py.Dataset]:
        return leaf_datasets(self.file["trajectories"]) if self.has_trajectories else {}

    def chunks(self, counts_values: bool = False) -> None:
        """Read every chunk that holds a row which counts, and compare the checksums, until a few do not fit."""
        counted = {name: len(dataset) for name, dataset in leaf_datasets(self.file).items()}
        counted |= {f"trajectories/{name}": self._num_rows(name) for name in self._trajectories()}
        if not self.is_complete:  # Written at the end of a run.
            del counted["throughput/ranks"]
        for name, num_rows in counted.items():
            check_room(self.file, name, self.file[name], num_rows, room=0)
        if counts_values:
            self._values = ValueChecks(self.root)
        with open(self.path, "rb", buffering=0) as file:
            problems = (each for name, rows in counted.items() for each in self._chunks_of(name, rows, file.fileno()))
            named = list(islice(problems, NUM_NAMED + 1))
        if named:
            self.refuse("; ".join(named[:NUM_NAMED]) + ("; and more" if len(named) > NUM_NAMED else ""))

    def _chunks_of(self, name: str, num_rows: int, descriptor: int) -> Iterator[str]:
        """Yield what is wrong with a dataset's first rows."""
        dataset = self.file[name]
        rows, filters = dataset.chunks[0], Filters(dataset)
        nbytes = dataset.dtype.itemsize * math.prod(dataset.chunks)
        for row in range(0, num_rows, rows):
            self.tell(f"{name} from row {row:,} on")
            for place in places(dataset, row):
                may_lack = not self.is_sealed and row + rows > num_rows
                info = dataset.id.get_chunk_info_by_coord(place)
                problem = self._chunk(info, filters, nbytes, descriptor, may_lack)
                problem = problem or self._count_values(dataset, place, num_rows, filters, info.filter_mask)
                if problem:
                    yield f"{name}, {self._rows(dataset, place)}: {problem}"

    @staticmethod
    def _rows(dataset: h5py.Dataset, place: tuple[int, ...]) -> str:
        ends = [min(i + size, whole) - 1 for i, size, whole in zip(place, dataset.chunks, dataset.shape, strict=True)]
        envs = f" of envs {place[1]} to {ends[1]}" if len(place) > 1 and dataset.chunks[1] < dataset.shape[1] else ""
        return f"rows {place[0]:,} to {ends[0]:,}{envs}"

    def _chunk(self, info: Any, filters: Filters, nbytes: int, descriptor: int, may_lack: bool) -> str:
        """What is wrong with a chunk, which has so many bytes in memory."""
        if info.byte_offset is None:
            return "there is no such chunk"
        mask, expected = info.filter_mask, info.size
        has_checksum = filters.has_checksum(mask)
        whole = nbytes + CHECKSUM_NBYTES * has_checksum
        if not (CHECKSUM_NBYTES < expected < whole if filters.is_packed(mask) else expected == whole):
            return f"the chunk has {expected} bytes, expected {whole}"
        if not (has_checksum or may_lack):
            return "the chunk has no checksum"
        if info.byte_offset + expected > os.fstat(descriptor).st_size:
            return "the file ends amid the chunk"
        data = self._buffer(expected)
        got = os.preadv(descriptor, [data], info.byte_offset)
        while 0 < got < expected and (more := os.preadv(descriptor, [data[got:]], info.byte_offset + got)):
            got += more
        if got < expected:
            return "the file ends amid the chunk"
        self.num_chunks, self.nbytes = self.num_chunks + 1, self.nbytes + expected
        if has_checksum and fletcher32(data[:-CHECKSUM_NBYTES]) != data[-CHECKSUM_NBYTES:].tobytes():
            return "the checksum does not fit"
        return ""

    def _count_values(
        self, dataset: h5py.Dataset, place: tuple[int, ...], num_rows: int, filters: Filters, mask: int
    ) -> str:
        """Count the wrong values in the chunk that was read last; say what is wrong with the chunk itself."""
        name = dataset.name.removeprefix("/trajectories/")
        if self._values is not None and name in self._values.of:
            try:
                data = filters.decode(self._room, mask)
            except zlib.error as error:
                return f"it cannot be decompressed: {error}"
            values = data.view(dataset.dtype).reshape(dataset.chunks)
            self._values.of[name].add(values[: num_rows - place[0], : dataset.shape[1] - place[1]], *place[:2])
        return ""

    def values(self) -> None:
        """The attributes that count wrong values say what follows from the values; earlier versions wrote none."""
        for name, check in self._values.of.items() if self._values is not None and self.is_sealed else ():
            attributes = attributes_of(self.file["trajectories"][name])
            for kind, follows in check.counts.items():
                got = attributes.get(kind, follows)
                if not np.array_equal(got, follows):
                    self.refuse(
                        f"trajectories/{name}: its attribute {kind} is {got}, from its values follows {follows}"
                    )

    def _buffer(self, nbytes: int) -> np.ndarray:
        """Room for a chunk, the same for all chunks of a size."""
        if len(self._room) != nbytes:
            self._room = np.empty(nbytes, np.uint8)
        return self._room

    def episodes(self) -> int:
        """Compare /episodes with what follows from rewards, ends, faults and seeds; return how many there are.

        Those under way at the end are written when a run ends: a killed run has none of them, or some.
        """
        table = make_table(self.config, committed_faults(self.file, self.num_steps))
        for results in stored_results(self.file["trajectories"], self.num_steps):
            self.tell(f"rewards and ends from step {results.start:,} on")
            table.add(results, 0, len(results.rewards))
        ended = table.take(self.num_steps)
        expected = np.concatenate([ended, table.unfinished(self.num_steps)])
        self.tell("episodes")
        rows = table_of(self.file, "episodes", EPISODE)
        if not self.is_sealed:
            rows = rows[rows["start"] + rows["length"] <= self.num_steps]
        if not (len(rows) == len(expected) or (len(ended) <= len(rows) <= len(expected) and not self.is_sealed)):
            self.refuse(f"episodes has {len(rows):,} rows, from rewards and ends follow {len(expected):,}")
        for name in EPISODE.names:
            got, follows = rows[name], expected[name][: len(rows)]
            differ = np.flatnonzero((got != follows) & ((got == got) | (follows == follows)))  # A return may be NaN.
            if len(differ):
                row = differ[0]
                self.refuse(
                    f"episodes, row {row:,}: {name} is {got[row]}, from rewards, ends and seeds follows {follows[row]}"
                )
        return len(rows)
