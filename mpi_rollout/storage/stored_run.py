"""What a run has written, of which the readers ask: one file, or a set of shards as if it were one.

A set is read through its shards, each of which is checked as any file, and must be the one that its manifest means.
The virtual datasets of the manifest are for other programs: HDF5 takes zeros for a shard that is missing.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import has_last_row
from mpi_rollout.errors import DataError
from mpi_rollout.process.paths import current
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.manifest import Manifest, check_end, is_set, open_shard, read_manifest
from mpi_rollout.storage.shard_files import name_now
from mpi_rollout.storage.stored_file import StoredFile
from mpi_rollout.storage.untrusted import steadily

MOST_OPEN = 256  # Shards with open files, of two descriptors each: most systems let a process have 1024 of these.


@dataclass
class Part:
    """Which envs a file of a run has; the file is opened and checked when it is first asked for."""

    envs: range
    open: Callable[[], StoredFile]

    @cached_property
    def file(self) -> StoredFile:
        """The file.  DataError if it is missing, damaged or another one."""
        return self.open()

    def close(self) -> None:
        """Close the file, if it is open."""
        if "file" in self.__dict__:
            self.file.close()


class StoredRun:
    """The attributes of a run, and the rows of its columns that are committed.

    A relative path begins in the current folder of now, wherever envs go meanwhile.
    DataError from the constructor if it is no file of a run, or is damaged; or if a shard is missing or another one.
    In a rescue, as `checked_file.checked` has it, there are no episodes.

    Attributes
    ----------
    path
        The whole path; of a set, that of its manifest.
    parts
        Its files: one, or its shards in the order of envs.
    attributes, config, leaves, chunks, reproducibility, resets
        As those of a `StoredFile`.
    num_steps
        Committed steps, when the run was last looked at; of shards the least, and a shard that is ahead waits.
    episodes, faults
        The rows of all files, in the order and with the envs of a single one.
    """

    def __init__(self, path: str, is_rescue: bool = False):
        self.path, self._is_rescue = path and os.path.join(current(), path), is_rescue
        self.parts: Sequence[Part] = ()
        self._opened: list[StoredFile] = []
        self.look()

    def look(self) -> None:
        """Read what is committed now."""
        self.close()
        if is_set(name_now(self.path)):
            steadily(self.path, self._look_at_set)
        else:
            self._look_at_file()

    def _look_at_file(self) -> None:
        part = Part(range(0), partial(StoredFile, self.path, self._is_rescue))
        file, part.envs, self.path = part.file, range(part.file.config.num_envs), part.file.path
        self._take_facts(file, [part])
        self.is_sealed, self.num_steps = file.is_sealed, file.num_steps
        self.resets, self.episodes, self.faults = file.resets, file.episodes, file.faults

    def _look_at_set(self) -> None:
        self.path = name_now(self.path)
        manifest = read_manifest(self.path)
        numbers = range(len(manifest.ranges))
        opens = [partial(open_shard, manifest, number, self.path, self._is_rescue) for number in numbers]
        parts = list(map(Part, manifest.ranges, opens))
        if manifest.is_complete and not self._is_rescue:
            with checked(self.path, lambda doing: None) as checks:
                self.num_steps, self.episodes = checks.num_steps, checks.committed_episodes()
                self.faults = checks.faults()
            for number in numbers:
                check_end(manifest, number, self.path)
            self._take_facts(manifest, parts)
        else:
            self._take_facts(manifest, parts)
            self.take_tables()
        self.is_sealed, self.resets = manifest.is_complete, None

    def take_tables(self) -> None:
        """Put the tables of the shards together, which are all opened; let the steps count that all of them have."""
        self.num_steps = min(part.file.num_steps for part in self.parts)
        for part in self.parts:
            part.file.limit_to(self.num_steps)
        faults, episodes = (self._merged(name) for name in ("faults", "episodes"))
        self.faults = faults[np.lexsort((faults["env_index"], faults["step"]))]
        is_cut, ends = ~(episodes["terminated"] | episodes["truncated"]), episodes["start"] + episodes["length"]
        self.episodes = episodes[np.lexsort((episodes["env_index"], ends, is_cut))]

    def _take_facts(self, source: StoredFile | Manifest, parts: Sequence[Part]) -> None:
        self.attributes, self.config, self.parts = source.attributes, source.config, parts
        self.is_complete, self.reproducibility = source.is_complete, source.reproducibility
        file = min(parts, key=lambda part: len(part.envs)).file  # Its chunks have the most steps.
        self.leaves, self.chunks = file.leaves, file.chunks
        self._first_envs = np.array([part.envs.start for part in parts])

    def _merged(self, table: str) -> np.ndarray:
        """Put the rows of a table of all files together, with the envs of the run."""
        parts = []
        for part in self.parts:
            rows = getattr(part.file, table).copy()
            rows["env_index"] += part.envs.start
            parts.append(rows)
        return np.concatenate(parts)

    def check_has_steps(self) -> None:
        """Raise DataError if its run did not store trajectories."""
        if not self.config.trajectories:
            raise DataError(f"{self.path} has no trajectories: its run measured throughput only")

    def has(self, rows: np.ndarray) -> np.ndarray:
        """Tell for each episode whether its steps are in the file."""
        is_inside = (rows["env_index"] >= 0) & (rows["env_index"] < self.config.num_envs) & (rows["start"] >= 0)
        return np.asarray(is_inside & (rows["length"] >= 0) & (rows["start"] + rows["length"] <= self.num_steps))

    def close(self) -> None:
        """Close the files that are open; they are opened again when they are needed."""
        for part in self.parts:
            part.close()

    def stored_name(self, name: str) -> str:
        """Return the name of a column in the files."""
        return name

    def num_rows(self, name: str) -> int:
        """Return the number of committed rows of a column; 0 before the first step."""
        return self.num_steps + has_last_row(name) if self.num_steps else 0

    def read(self, name: str, rows: slice | np.ndarray, envs: slice, into: np.ndarray | None = None) -> np.ndarray:
        """Read a range of a column's rows (into an array, if one is given), or single rows in any order, of some envs.

        Every chunk is checked.  Only the files are opened that have these envs.
        """
        if len(self.parts) == 1:
            return self.parts[0].file.read(self.stored_name(name), rows, envs, into)
        leaf, num_rows = self.leaves[name], rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        array = np.empty((num_rows, envs.stop - envs.start, *leaf.shape), leaf.dtype) if into is None else into
        for file, inner, outer in self._overlaps(envs):
            if isinstance(rows, slice):
                file.read(self.stored_name(name), rows, inner, array[:, outer])
            else:
                array[:, outer] = file.read(self.stored_name(name), rows, inner)
        return array

    def _overlaps(self, envs: slice) -> Iterator[tuple[StoredFile, slice, slice]]:
        """Yield the files that have some of a range of envs: which of theirs, and which of the range these are."""
        for number, there in enumerate(part.envs for part in self.parts):
            first, stop = max(envs.start, there.start), min(envs.stop, there.stop)
            if first < stop:
                inner, outer = (slice(first - begin, stop - begin) for begin in (there.start, envs.start))
                yield self.use(number), inner, outer

    def use(self, number: int) -> StoredFile:
        """Return a file that is going to be read; of many, close the one before, as all may be read in turn again."""
        file = self.parts[number].file
        if file not in self._opened:
            if len(self._opened) == MOST_OPEN:
                self._opened.pop().close()
            self._opened.append(file)
        return file

    def parts_of(self, envs: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
        """Divide envs by their files; yield the number of each file, and the places of its envs in the array."""
        numbers = np.searchsorted(self._first_envs, envs, side="right") - 1
        for number in np.unique(numbers).tolist():
            yield number, np.flatnonzero(numbers == number)

    @property
    def ended(self) -> np.ndarray:
        """The rows of the episodes that have ended."""
        return np.asarray(self.episodes[self.episodes["terminated"] | self.episodes["truncated"]])

    def unfinished(self) -> np.ndarray:
        """Return the rows of the episodes that the end of the data cuts: neither terminated nor truncated."""
        if self.is_sealed:
            return np.asarray(self.episodes[~(self.episodes["terminated"] | self.episodes["truncated"])])
        tables = []
        for part in self.parts:
            rows = part.file.unfinished().copy()
            rows["env_index"] += part.envs.start
            tables.append(rows)
            if len(self.parts) > 1:
                part.close()
        return np.concatenate(tables)


class StoredParts(StoredRun):
    """Some neighbouring shards of a set as a run of their own, whose configuration is given; `ranges` begin with 0."""

    def __init__(self, config: RolloutConfig, paths: Sequence[str], ranges: Sequence[range]):
        self._config, self._paths, self._ranges = config, paths, ranges
        super().__init__(paths[0])

    def look(self) -> None:
        self.close()
        self.manifest = None
        opens = [partial(StoredFile, path) for path in self._paths]
        parts = list(map(Part, self._ranges, opens))
        self._take_facts(parts[0].file, parts)
        self.config, self.is_sealed, self.resets = self._config, False, None
        self.take_tables()
