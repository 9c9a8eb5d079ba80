"""The committed first steps of a run, copied into another file: to recover them, or to go on with the run."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import h5py
import numpy as np

from mpi_rollout.core.columns import ALIVE, has_last_row, result_name
from mpi_rollout.errors import DataError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.storage.checked_file import CheckedFile, check_num_steps, checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.episodes import EpisodeTable, make_table, stored_results
from mpi_rollout.storage.manifest import is_set
from mpi_rollout.storage.new_files import closing_whole, writing
from mpi_rollout.storage.ownership import give_name
from mpi_rollout.storage.schema import (
    FAULT,
    INTERVAL,
    LATER_ATTRIBUTES,
    LIMIT,
    RANK,
    ROOMS,
    Schema,
    agents_in,
    fault_row,
    leaf_datasets,
)
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import Tell, count, number
from mpi_rollout.storage.verification import verify

OF_SET = "run", "shards"  # Attributes and options that the file of no set has.
OPTIONS_OF_SET = "storage", "shards_per_node"


class SetSource:
    """A set of shards as the one file that is made of it: what is asked of a `CheckedFile`, which the manifest is."""

    def __init__(self, manifest: CheckedFile, stored: StoredRun, num_steps: int):
        self._stored, self.stored, self.num_steps, self.num_committed = stored, self, num_steps, stored.num_steps
        self.root, self.is_complete, self.throughput = manifest.root, manifest.is_complete, manifest.throughput
        self.starts = max(part.file.starts for part in stored.parts)
        self.tell, self.table, self.resets = manifest.tell, manifest.table, manifest.resets
        kept = {name: value for name, value in self.root.items() if name not in (*OF_SET, *LATER_ATTRIBUTES)}
        options = json.loads(str(self.root["config"]))
        kept["config"] = json.dumps({name: value for name, value in options.items() if name not in OPTIONS_OF_SET})
        self.schema = Schema(kept, max(shape[0] for shape in stored.chunks.values()))
        self.config = self.schema.config

    def faults(self) -> np.ndarray:
        """Return the rows of /faults of the steps that count."""
        return np.asarray(self._stored.faults[self._stored.faults["step"] < self.num_steps])

    def chunks(self, name: str) -> "SetColumn":
        """Return a column by its path."""
        return SetColumn(self._stored, name.removeprefix("trajectories/"))


class SetColumn:
    """A column of a set, read as `ChunkReader` reads one of a file."""

    def __init__(self, stored: StoredRun, name: str):
        self._stored, self._name, self.rows = stored, name, stored.chunks[name][0]
        self.shape = stored.num_rows(name), stored.config.num_envs

    def read(self, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        """Read rows `start` to `stop` - 1, into an array if one is given; DataError if a chunk is damaged."""
        return self._stored.read(self._name, slice(start, stop), slice(0, self.shape[1]), into)


def recover(tell: Tell, path: str, new_path: str, temporary: str, num_steps: int | None = None) -> dict[str, object]:
    """Make a complete, verified file of what a run has committed; return what `verify` says of it.

    The run's own file stays as it is.  Episodes under way at the last commit get rows with none of `terminated` and
    `truncated`, as at the end of a run.  If the run's `finished` is empty, so is the new file's; it then has the
    attribute `recovered`, the time.

    The new file is called `temporary` until it is verified.  With `num_steps`, it has so many of the committed steps.
    """
    with _source_of(path, tell, num_steps) as source:
        if source.num_committed == 0:
            raise DataError(f"{path}: no step is committed, there is nothing to recover")
        schema = schema_of(source.file) if isinstance(source, CheckedFile) else source.schema
        try:
            with writing(new_path), closing_whole(FileDatasets(schema.create(temporary, swmr_mode=False))) as new:
                _fill(source, new)
        except DataError as error:
            raise type(error)(f"{error}; with --num-steps N only the first N steps are recovered") from error
    verified = verify(tell, temporary)
    with writing(new_path):
        give_name(temporary, new_path)
    return verified | {"file": new_path}


@contextmanager
def _source_of(path: str, tell: Tell, num_steps: int | None) -> Iterator[CheckedFile | SetSource]:
    if not is_set(path):
        with checked(path, tell, num_steps, is_rescue=True) as file:
            yield file
        return
    with checked(path, tell, is_rescue=True) as manifest, closing(StoredRun(path, is_rescue=True)) as stored:
        check_num_steps(num_steps, stored.num_steps)
        yield SetSource(manifest, stored, num_steps or stored.num_steps)


def schema_of(file: h5py.File) -> Schema:
    """Return the schema of a file that continues this one, with the columns that this version has."""
    attributes = {name: value for name, value in file.attrs.items() if name not in LATER_ATTRIBUTES}
    return Schema(attributes, max(dataset.chunks[0] for dataset in leaf_datasets(file["trajectories"]).values()))


def _fill(source: CheckedFile | SetSource, destination: FileDatasets) -> None:
    """Put into a new file the steps that `source` has checked, and what is known of the end of the run."""
    num_steps, attributes = source.num_steps, destination.file.attrs
    table = copy_prefix(source, destination, {}, is_last=True)
    destination.note_starts(source.starts)
    destination.tables["episodes"].append(table.unfinished(num_steps))
    destination.tables["throughput/limit"].append(source.table("throughput/limit", LIMIT))
    if num_steps == source.num_committed and source.is_complete:
        for name in ROOMS.keys() & source.root.keys():
            attributes.modify(name, source.root[name])
    else:
        attributes["recovered"] = utc_now()
    env_steps, seconds = count(source.throughput, "env_steps"), number(source.throughput, "seconds")
    intervals = source.table("throughput/intervals", INTERVAL)
    if seconds == 0 and len(intervals):  # The run was killed.
        env_steps, seconds = intervals["env_steps"][-1], intervals["time"][-1]
    destination.end(num_steps, env_steps, seconds, source.table("throughput/ranks", RANK), is_last=True)


def copy_prefix(
    source: CheckedFile | SetSource, destination: FileDatasets, lost: Mapping[int, int], is_last: bool = False
) -> EpisodeTable:
    """Copy and commit the steps of a run that count, the episodes that ended in them, its faults and intervals.

    All checksums are compared on the way.  Return the table of episodes after these steps, with those under way.

    Parameters
    ----------
    lost
        Envs whose running episodes end here, truncated and faulted, and the step that they did not reproduce.
    is_last
        No steps follow.  Otherwise chunks that are not full are left so that writing can go on; see `chunks`.
    """
    agents = agents_in(source.root)
    marks = {result_name("truncations", agents): True, **{f"{ALIVE.path}/{agent}": False for agent in agents}}
    for name in destination.columns:
        _copy_column(source, destination, name, sorted(lost) if name in marks else [], marks.get(name, True), is_last)
    table = _copy_episodes(source, destination, lost)
    destination.tables["throughput/intervals"].append(source.table("throughput/intervals", INTERVAL))
    destination.commit(source.num_steps)
    return table


def _copy_column(
    source: CheckedFile | SetSource, destination: FileDatasets, name: str, ends: list[int], mark: bool, is_last: bool
) -> None:
    """Copy the rows of a column that count; in the last one, set the values of the envs `ends` to `mark`."""
    path, writer = f"trajectories/{name}", destination.columns[name]
    column, num_rows = source.stored.chunks(path), source.num_steps + has_last_row(name)
    rows = math.lcm(column.rows, writer.chunks[0])  # Powers of two: the larger of them.
    buffer = np.zeros((rows, *writer.dataset.shape[1:]), writer.dataset.dtype)
    for row in range(0, num_rows, rows):
        stop = min(rows, num_rows - row)
        source.tell(f"{path}, rows {row:,} to {row + stop - 1:,}")
        buffer[stop:] = np.zeros((), buffer.dtype)
        column.read(row, row + stop, into=buffer)
        if row + stop == num_rows and ends:
            buffer[stop - 1, ends] = mark
        destination.append(name, buffer, row, stop, is_last=is_last and row + stop == num_rows)


def _copy_episodes(source: CheckedFile | SetSource, destination: FileDatasets, lost: Mapping[int, int]) -> EpisodeTable:
    """Copy faults, and write the episodes that have ended, those of lost envs too; return the table of all episodes."""
    faults, resets, num_steps = source.faults(), source.resets(), source.num_steps
    table = make_table(source.config, source.root, faults, resets)
    if resets is not None:
        destination.tables["resets"].append(resets)
    episodes = destination.tables["episodes"]
    for results in stored_results(source.stored, source.root, num_steps):
        source.tell(f"rewards and ends from step {results.start:,} on")
        table.add(results, 0, len(results.rewards))
        episodes.append(table.take(num_steps - 1))
    last = np.concatenate([table.take(num_steps), table.lose(lost, num_steps)])  # All of them end there.
    episodes.append(last[np.argsort(last["env_index"], kind="stable")])
    again = [fault_row(index, num_steps - 1, f"did not reproduce step {step}") for index, step in lost.items()]
    destination.tables["faults"].append(np.concatenate([faults, np.array(again, FAULT)]))
    return table
