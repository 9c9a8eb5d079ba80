"""Whether a file is what it says: every chunk of it is read, every statement in it that follows from others checked.

Chunks are read from where HDF5's index says that they are, not through HDF5: so it is known which are damaged.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import DataError, RolloutError, first_line
from mpi_rollout.layout import RESULTS, Leaf
from mpi_rollout.storage.checksum import CHECKSUM_NBYTES, fletcher32
from mpi_rollout.storage.chunks import WITHOUT_CHECKSUM, places
from mpi_rollout.storage.episodes import make_table, stored_results
from mpi_rollout.storage.reader import Tell, check_format, committed_faults, leaf_datasets
from mpi_rollout.storage.schema import EPISODE, FAULT, INTERVAL, LIMIT, RANK, digest_of
from mpi_rollout.storage.unmarked import open_unmarked

ATTEMPTS = 3
NUM_NAMED = 3  # Damaged chunks that a message names.


def verify(tell: Tell, path: str) -> dict[str, Any]:
    """Check all of a file, complete or not; return what there is, JSON-able.

    Raises
    ------
    DataError
        Something is wrong; the message says what and where.
    """
    for attempt in range(ATTEMPTS):
        before = _state(path)
        try:
            with opened(path, tell) as verification:
                return verification.everything()
        except DataError:
            if attempt + 1 == ATTEMPTS or _state(path) == before:
                raise
        time.sleep(0.5)  # A run writes it, and may have been about to change what was read.
    raise AssertionError


def check_chunks(path: str) -> None:
    """Check what a commit cannot have spoiled by itself: attributes, lengths, every chunk's checksum."""
    with opened(path, lambda doing: None) as verification:
        verification.lengths()
        verification.chunks()


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


@contextmanager
def opened(path: str, tell: Tell) -> Iterator["Verification"]:
    """Open a file of this program that may be damaged.

    Raises
    ------
    DataError
        It is not one; or HDF5 or we could not make sense of it, here or in the `with` block.
    """
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file")
    doing = "its superblock"

    def note(what: str) -> None:
        nonlocal doing
        doing = what
        tell(f"reading {what}")

    note(doing)
    try:
        with open_unmarked(path) as file:
            note("its root group")
            check_format(file, path)
            yield Verification(file, path, note)
    except RolloutError:
        raise
    except Exception as error:  # Damaged bytes have any value.
        raise DataError(f"{path}: cannot read {doing}: {type(error).__name__}: {first_line(error)}") from error


class Verification:
    """The checks of one file.  All raise DataError."""

    def __init__(self, file: h5py.File, path: str, tell: Tell):
        self.file, self.path, self.tell = file, path, tell
        self.is_complete = bool(file.attrs["finished"].strip())
        self.is_sealed = self.is_complete or "recovered" in file.attrs
        self.has_trajectories = "trajectories" in file
        self.num_steps = int(file["trajectories"].attrs["num_steps"]) if self.has_trajectories else 0
        self.num_chunks = self.nbytes = 0

    def everything(self) -> dict[str, Any]:
        self.attributes()
        self.structure()
        self.lengths()
        self.chunks()
        num_episodes = self.episodes() if self.has_trajectories else 0
        return {
            "file": self.path,
            "complete": self.is_complete,
            "recovered": self.is_sealed and not self.is_complete,
            "num_steps": self.num_steps,
            "episodes": num_episodes,
            "chunks": self.num_chunks,
            "nbytes": self.nbytes,
        }

    def take_only(self, num_steps: int) -> None:
        """Check no more than the first steps."""
        self.is_sealed = self.is_sealed and num_steps == self.num_steps
        self.num_steps = num_steps

    def refuse(self, what: str) -> None:
        raise DataError(f"{self.path}: {what}")

    def attributes(self) -> None:
        """Those of all objects can be read, those of the root are as they were written."""
        self.tell("attributes")
        self.file.visititems(lambda _, item: dict(item.attrs) and None)
        attributes = dict(self.file.attrs)
        if "digest" not in attributes:
            self.refuse("there is no digest of its attributes: an earlier version wrote it, without checksums")
        if digest_of(attributes) != attributes["digest"]:
            self.refuse("the attributes of its root group are not what was written: their digest does not fit")
        self.config = json.loads(attributes["config"])

    def structure(self) -> None:
        """The datasets are those that follow from configuration and spaces."""
        self.tell("the list of its datasets")
        found, expected = leaf_datasets(self.file), self._expected()
        for name, (dtype, shape) in expected.items():
            if name not in found:
                self.refuse(f"there is no {name}")
            if (got := (found[name].dtype, found[name].shape[1:])) != (dtype, shape):
                self.refuse(f"{name} should be {dtype} {shape} a row, got {got[0]} {got[1]}")
            if not found[name].fletcher32:
                self.refuse(f"{name} has no checksums")
        if unknown := sorted(found.keys() - expected.keys()):
            self.refuse(f"there is a dataset {unknown[0]} that does not belong to it")

    def _expected(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Of every dataset the dtype and the shape without its first axis."""
        expected = {"throughput/intervals": (INTERVAL, ()), "throughput/limit": (LIMIT, ()), "faults": (FAULT, ())}
        expected["throughput/ranks"] = RANK, ()
        if not self.config["trajectories"]:
            return expected
        expected["episodes"] = EPISODE, ()
        spaces = json.loads(self.file.attrs["spaces"])
        groups = {"": RESULTS}
        groups |= {f"{name}s": described_leaves(spaces[name]) for name in ("observation", "action")}
        for group, leaves in groups.items():
            for leaf in leaves:
                path = f"trajectories/{group}/{leaf.path}".replace("//", "/").rstrip("/")
                expected[path] = leaf.dtype, (self.config["num_envs"], *leaf.shape)
        return expected

    def lengths(self) -> None:
        """Datasets have as many rows as steps are committed; in a file that is not sealed they may have more."""
        for name, dataset in self._trajectories().items():
            expected, got = self._num_rows(name), len(dataset)
            if got < expected or (got > expected and self.is_sealed):
                self.refuse(f"trajectories/{name} has {got:,} rows, expected {expected:,}: one for each step")
        num_ranks = int(self.file.attrs.get("num_ranks", len(self.file["throughput/ranks"])))
        if len(self.file["throughput/ranks"]) != num_ranks:
            self.refuse(f"throughput/ranks has {len(self.file['throughput/ranks'])} rows for {num_ranks} ranks")

    def _num_rows(self, name: str) -> int:
        """The rows that count of a dataset of /trajectories; before the first commit none does."""
        is_begun = self.num_steps > 0 or self.is_sealed
        return self.num_steps + (name.startswith("observations") and is_begun)

    def _trajectories(self) -> dict[str, h5py.Dataset]:
        return leaf_datasets(self.file["trajectories"]) if self.has_trajectories else {}

    def chunks(self) -> None:
        """Read every chunk that holds a row which counts; compare the checksums."""
        counted = {f"trajectories/{name}": self._num_rows(name) for name in self._trajectories()}
        problems = []
        with open(self.path, "rb", buffering=0) as file:
            for name, dataset in leaf_datasets(self.file).items():
                problems += self._chunks_of(name, dataset, counted.get(name, len(dataset)), file.fileno())
        if problems:
            more = f"; and {len(problems) - NUM_NAMED:,} more" if len(problems) > NUM_NAMED else ""
            self.refuse("; ".join(problems[:NUM_NAMED]) + more)

    def _chunks_of(self, name: str, dataset: h5py.Dataset, num_rows: int, descriptor: int) -> Iterator[str]:
        """Yield what is wrong with a dataset's first rows."""
        rows = dataset.chunks[0]
        buffer = np.empty(dataset.dtype.itemsize * int(np.prod(dataset.chunks)) + CHECKSUM_NBYTES, np.uint8)
        for row in range(0, num_rows, rows):
            self.tell(f"{name} from row {row:,} on")
            for place in places(dataset, row):
                may_lack = not self.is_sealed and row + rows > num_rows
                problem = self._chunk(dataset.id.get_chunk_info_by_coord(place), buffer, descriptor, may_lack)
                if problem and not (name == "throughput/ranks" and not self.is_complete):
                    yield f"{name}, {self._rows(dataset, place)}: {problem}"

    @staticmethod
    def _rows(dataset: h5py.Dataset, place: tuple[int, ...]) -> str:
        ends = [min(i + size, whole) - 1 for i, size, whole in zip(place, dataset.chunks, dataset.shape, strict=True)]
        envs = f" of envs {place[1]} to {ends[1]}" if len(place) > 1 and dataset.chunks[1] < dataset.shape[1] else ""
        return f"rows {place[0]:,} to {ends[0]:,}{envs}"

    def _chunk(self, info: Any, buffer: np.ndarray, descriptor: int, may_lack: bool) -> str:
        """What is wrong with a chunk."""
        has_checksum = not (info.filter_mask or 0) & WITHOUT_CHECKSUM
        expected = len(buffer) if has_checksum else len(buffer) - CHECKSUM_NBYTES
        if info.byte_offset is None:
            return "there is no such chunk"
        if info.size != expected:
            return f"the chunk has {info.size} bytes, expected {expected}"
        if not (has_checksum or may_lack):
            return "the chunk has no checksum"
        data = buffer[:expected]
        got = os.preadv(descriptor, [data], info.byte_offset)
        while 0 < got < expected and (more := os.preadv(descriptor, [data[got:]], info.byte_offset + got)):
            got += more
        if got < expected:
            return "the file ends amid the chunk"
        self.num_chunks, self.nbytes = self.num_chunks + 1, self.nbytes + expected
        if has_checksum and fletcher32(data[:-CHECKSUM_NBYTES]) != data[-CHECKSUM_NBYTES:].tobytes():
            return "the checksum does not fit"
        return ""

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
        rows = self.file["episodes"][...]
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


def described_leaves(description: dict[str, Any], keys: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """The leaves of a space from what `layout.describe` says of it."""
    parts = description.get("subspaces")
    if parts is None:
        return (Leaf(keys, np.dtype(description["dtype"]), tuple(description["shape"])),)
    items = parts.items() if isinstance(parts, dict) else enumerate(parts)
    return tuple(leaf for key, child in items for leaf in described_leaves(child, (*keys, key)))
