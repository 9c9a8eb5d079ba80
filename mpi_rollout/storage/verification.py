"""Whether a file is what it says: every chunk of it is read, every statement that follows from others is checked."""

import zlib
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.info_columns import with_masks
from mpi_rollout.core.layout import OF_STATES, RESULTS
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import DataError, counted
from mpi_rollout.storage.chunks import ChunkReader, is_sparse, places
from mpi_rollout.storage.codecs import compression_of, is_available, pays, why_missing
from mpi_rollout.storage.episodes import make_table, stored_results
from mpi_rollout.storage.objects import (
    Tell,
    attributes_of,
    check_room,
    count,
    number,
    object_of,
    parsed,
    table_of,
    text,
)
from mpi_rollout.storage.reader import (
    check_attributes,
    committed_faults,
    committed_resets,
    leaf_datasets,
    num_steps_of,
    opened,
    steadily,
)
from mpi_rollout.storage.schema import EPISODE, FAULT, INTERVAL, LIMIT, RANK, RESET, is_recording
from mpi_rollout.storage.values import ValueChecks, described_leaves

NUM_NAMED = 3  # Damaged chunks that a message names.


def verify(tell: Tell, path: str) -> dict[str, object]:
    """Check all of a file, complete or not; return what there is, as JSON can hold it.

    DataError if something is wrong; the message says what and where.
    """

    def everything() -> dict[str, object]:
        with opened(path, tell) as (file, note):
            return Verification(file, path, note).everything()

    return steadily(path, everything)


def check_chunks(path: str) -> None:
    """Check what a commit cannot have spoiled by itself: attributes, lengths, every chunk's checksum."""
    with opened(path, lambda doing: None) as (file, note):
        verification = Verification(file, path, note)
        verification.lengths()
        verification.chunks()


class Verification:
    """The checks of one file.  All raise DataError.

    Attributes
    ----------
    is_sealed
        No run goes on with the file: all its chunks have checksums, and all its datasets the same number of steps.
    """

    def __init__(self, file: h5py.File, path: str, tell: Tell):
        self.file, self.path, self.tell = file, path, tell
        self.root = attributes_of(file)
        self.is_complete = bool(text(self.root, "finished").strip())
        self.is_sealed = self.is_complete or "recovered" in self.root
        self.has_trajectories = "trajectories" in file
        self.num_steps = num_steps_of(file) if self.has_trajectories else 0
        self.num_chunks = self.nbytes = 0
        self._values: ValueChecks | None = None

    def everything(self) -> dict[str, object]:
        """Make all checks; return what there is, as JSON can hold it."""
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
            "limits": text(self.root, "limits") if is_recording(self.root) else "",
            "num_steps": self.num_steps,
            "episodes": num_episodes,
            "chunks": self.num_chunks,
            "nbytes": self.nbytes,
            "wrong_values": [] if self._values is None else self._values.wrong,
        }

    def take_only(self, num_steps: int) -> None:
        """Check no more than the first steps."""
        self.is_sealed = self.is_sealed and num_steps == self.num_steps
        self.num_steps = num_steps

    def refuse(self, what: str) -> NoReturn:
        """Say what is wrong with the file."""
        raise DataError(f"{self.path}: {what}")

    def attributes(self) -> None:
        """Check that the attributes of the root are as they were written."""
        self.tell("attributes")
        check_attributes(self.root)
        self.config = RolloutConfig.from_json(self.root["config"], self.path)
        throughput = attributes_of(object_of(self.file, "throughput", h5py.Group))
        count(throughput, "env_steps"), number(throughput, "seconds")

    def structure(self) -> None:
        """Check that the datasets are those that follow from configuration and spaces."""
        self.tell("the list of its datasets")
        datasets, expected = leaf_datasets(self.file), self._expected()
        for name, (dtype, shape) in expected.items():
            if name not in datasets:
                self.refuse(f"there is no {name}")
            self._check_dataset(name, datasets[name], dtype, shape)
        if unknown := sorted(datasets.keys() - expected.keys()):
            self.refuse(f"there is a dataset {unknown[0]} that does not belong to it")

    def _check_dataset(self, name: str, dataset: h5py.Dataset, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        got = dataset.dtype, (dataset.shape or ())[1:]
        if got != (dtype, shape):
            self.refuse(f"{name} should be {dtype} {shape} a row, got {got[0]} {got[1]}")
        if dataset.chunks is None or dataset.chunks[2:] != tuple(max(size, 1) for size in shape[1:]):
            self.refuse(f"{name} is not cut into chunks of whole rows")
        if not dataset.fletcher32:
            self.refuse(f"{name} has no checksums")
        self._check_compression(name, dataset)

    def _check_compression(self, name: str, dataset: h5py.Dataset) -> None:
        """Refuse other filters than the configuration says: they would be called with what the file has."""
        wanted = self.config.compression if name.startswith("trajectories/") else "none"
        expected, got = wanted if pays(wanted, dataset.dtype, dataset.shape[2:]) else "none", compression_of(dataset)
        if expected != got:
            self.refuse(f"{name} should have the compression {expected}, got {got}")
        if not is_available(got):
            self.refuse(f"{name} is compressed: {why_missing(got)}")

    def _expected(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Return for every dataset the dtype, and the shape without its first axis."""
        expected: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "throughput/intervals": (INTERVAL, ()),
            "throughput/limit": (LIMIT, ()),
            "throughput/ranks": (RANK, ()),
            "faults": (FAULT, ()),
        }
        if is_recording(self.root):
            expected["resets"] = RESET, ()
        if not self.config.trajectories:
            return expected
        expected["episodes"] = EPISODE, ()
        spaces = parsed(self.root, "spaces", dict)
        groups: dict[str, tuple[Leaf, ...]] = {"": RESULTS}
        for name in ("observation", "action", *sorted({"extra", "info"} & spaces.keys())):
            groups[f"{name}s"] = tuple(leaf for leaf, *_ in described_leaves(spaces.get(name)))
        groups["infos"] = with_masks(groups.get("infos", ()))
        if np.all(np.asarray(self.root.get("has_final_observations", False))):
            groups |= {"final_observations": groups["observations"], "final_infos": groups["infos"]}
        for group, leaves in groups.items():
            for leaf in leaves:
                path = f"trajectories/{group}/{leaf.path}".replace("//", "/").rstrip("/")
                expected[path] = leaf.dtype, (self.config.num_envs, *leaf.shape)
        return expected

    def lengths(self) -> None:
        """Check that datasets have a row for each committed step; before the file is sealed they may have more."""
        for name, dataset in self._trajectories().items():
            expected, got = self._num_rows(name), len(dataset)
            if got < expected or (got > expected and self.is_sealed):
                self.refuse(f"trajectories/{name} has {got:,} rows, expected {expected:,}: one for each step")
        num_ranks, num_rows = count(self.root, "num_ranks"), len(self.file["throughput/ranks"])
        if num_rows != num_ranks:
            self.refuse(f"throughput/ranks has {counted(num_rows, 'row')} for {counted(num_ranks, 'rank')}")

    def _num_rows(self, name: str) -> int:
        """Return how many rows of a dataset of /trajectories count; before the first commit none does."""
        is_begun = self.num_steps > 0 or self.is_sealed
        return self.num_steps + (name.startswith(OF_STATES) and is_begun)

    def _trajectories(self) -> dict[str, h5py.Dataset]:
        return leaf_datasets(self.file["trajectories"]) if self.has_trajectories else {}

    def chunks(self, counts_values: bool = False) -> None:
        """Read every chunk that holds a row which counts, and compare the checksums, until a few are wrong."""
        num_rows = {name: len(dataset) for name, dataset in leaf_datasets(self.file).items()}
        num_rows |= {f"trajectories/{name}": self._num_rows(name) for name in self._trajectories()}
        if not self.is_complete:  # Written at the end of a run.
            del num_rows["throughput/ranks"]
        for name, rows in num_rows.items():
            if not is_sparse(self.file[name]):  # It has no more rows than the observations, which are not.
                check_room(self.file, name, self.file[name], rows, room=0)
        if counts_values:
            self._values = ValueChecks(self.root)
        with open(self.path, "rb", buffering=0) as file:
            problems = (
                problem for name, rows in num_rows.items() for problem in self._problems_of(name, rows, file.fileno())
            )
            named = list(islice(problems, NUM_NAMED + 1))
        if named:
            self.refuse("; ".join(named[:NUM_NAMED]) + ("; and more" if len(named) > NUM_NAMED else ""))

    def _problems_of(self, name: str, num_rows: int, descriptor: int) -> Iterator[str]:
        """Yield what is wrong with the chunks of a dataset's first rows."""
        dataset = self.file[name]
        reader, rows = ChunkReader(dataset, descriptor), dataset.chunks[0]
        for row in range(0, num_rows, rows):
            self.tell(f"{name} from row {row:,} on")
            for place in places(dataset, row):
                may_lack = not self.is_sealed and row + rows > num_rows
                if problem := reader.read(place, may_lack) or self._count_values(dataset, place, num_rows, reader):
                    yield f"{name}, {_rows(dataset, place)}: {problem}"
        self.num_chunks, self.nbytes = self.num_chunks + reader.num_chunks, self.nbytes + reader.nbytes

    def _count_values(self, dataset: h5py.Dataset, place: tuple[int, ...], num_rows: int, reader: ChunkReader) -> str:
        """Count the wrong values in the chunk that was read last; return what is wrong with the chunk itself."""
        name = dataset.name.removeprefix("/trajectories/")
        if self._values is not None and name in self._values.of:
            try:
                values = reader.values()
            except zlib.error as error:
                return f"it cannot be decompressed: {error}"
            row, env = place[:2]
            self._values.of[name].add(values[: num_rows - row, : dataset.shape[1] - env], row, env)
        return ""

    def values(self) -> None:
        """Check that the attributes that count wrong values say what follows from the values."""
        if self._values is None or not self.is_sealed:
            return
        for name, check in self._values.of.items():
            attributes = attributes_of(self.file["trajectories"][name])
            for kind, follows in check.counts.items():
                got = attributes.get(kind)
                if not np.array_equal(np.asarray(got), follows):
                    self.refuse(
                        f"trajectories/{name}: its attribute {kind} is {got}, from its values follows {follows}"
                    )

    def episodes(self) -> int:
        """Compare /episodes with what follows from rewards, ends, faults and seeds; return how many there are.

        Those under way at the end are written when a run ends: a killed run has none of them, or some.
        """
        faults, resets = committed_faults(self.file, self.num_steps), committed_resets(self.file, self.num_steps)
        table = make_table(self.config, self.root, faults, resets)
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
        self._compare_episodes(rows, expected)
        if resets is not None:
            self._check_cuts(resets[resets["cut"]], ended[ended["truncated"]])
        return len(rows)

    def _check_cuts(self, cuts: np.ndarray, truncated: np.ndarray) -> None:
        """Check that each episode that a trainer has cut is truncated there."""
        num_envs = self.config.num_envs
        ends = (truncated["start"] + truncated["length"]) * num_envs + truncated["env_index"]
        missing = cuts[~np.isin(cuts["step"] * num_envs + cuts["env_index"], ends)]
        if len(missing):
            env, step = missing[0]["env_index"], missing[0]["step"]
            self.refuse(f"resets says that the episode of env {env} was cut before step {step:,}; it is not truncated")

    def _compare_episodes(self, rows: np.ndarray, expected: np.ndarray) -> None:
        for name in EPISODE.names or ():
            got, follows = rows[name], expected[name][: len(rows)]
            differ = np.flatnonzero((got != follows) & ((got == got) | (follows == follows)))  # A return may be NaN.
            if len(differ):
                row = differ[0]
                self.refuse(
                    f"episodes, row {row:,}: {name} is {got[row]}, from rewards, ends and seeds follows {follows[row]}"
                )


def _rows(dataset: h5py.Dataset, place: tuple[int, ...]) -> str:
    """Return the words for the rows and envs of a chunk."""
    ends = [min(i + size, whole) - 1 for i, size, whole in zip(place, dataset.chunks, dataset.shape, strict=True)]
    envs = f" of envs {place[1]} to {ends[1]}" if len(place) > 1 and dataset.chunks[1] < dataset.shape[1] else ""
    return f"rows {place[0]:,} to {ends[0]:,}{envs}"
