"""The committed first steps of a run, copied into another file: to recover them, or to go on with the run."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.clock import utc_now
from mpi_rollout.core.layout import OF_STATES
from mpi_rollout.errors import DataError, StorageError, UsageError, system_words
from mpi_rollout.storage.chunks import ChunkWriter, TableWriter, fill, places, read_chunk
from mpi_rollout.storage.episodes import EpisodeTable, make_table, stored_results
from mpi_rollout.storage.objects import Tell
from mpi_rollout.storage.ownership import free_space, give_name
from mpi_rollout.storage.reader import committed_episodes, committed_faults, committed_resets, leaf_datasets, opened
from mpi_rollout.storage.schema import FAULT, LATER_ATTRIBUTES, Schema, fault_row
from mpi_rollout.storage.values import ValueChecks
from mpi_rollout.storage.verification import Verification, verify

NONE_LOST: Mapping[int, int] = MappingProxyType({})


def recover(tell: Tell, path: str, new_path: str, temporary: str, num_steps: int | None = None) -> dict[str, object]:
    """Make a complete, verified file of what a run has committed; return what `verify` says of it.

    The run's own file stays as it is.  Episodes under way at the last commit get rows with none of `terminated` and
    `truncated`, as at the end of a run.  If the run's `finished` is empty, so is the new file's; it then has the
    attribute `recovered`, the time.

    Parameters
    ----------
    temporary
        The name of the new file until it is verified.
    num_steps
        Take so many steps, not all that are committed.
    """
    with opened(path, tell) as (file, note):
        source = Verification(file, path, note)
        is_all = _check_prefix(source, num_steps)
        with _writing(new_path), schema_of(source.file).create(temporary, swmr_mode=False) as destination:
            _fill(source, destination, is_all, tell)
    verified = verify(tell, temporary)
    with _writing(new_path):
        give_name(temporary, new_path)
    return verified | {"file": new_path}


def _check_prefix(source: Verification, num_steps: int | None) -> bool:
    """Check the first steps of a file; tell whether these are all that are committed."""
    source.attributes()
    source.structure()
    source.lengths()
    num_committed = source.num_steps
    if num_committed == 0:
        raise DataError(f"{source.path}: no step is committed, there is nothing to recover")
    num_steps = num_committed if num_steps is None else num_steps
    if not 1 <= num_steps <= num_committed:
        raise UsageError(f"--num-steps must be 1 to {num_committed}, the steps that are committed, got {num_steps}")
    source.take_only(num_steps)
    try:
        source.chunks()
    except DataError as error:
        raise DataError(f"{error}; with --num-steps N only the first N steps are recovered") from error
    return num_steps == num_committed


def schema_of(file: h5py.File) -> Schema:
    """Return the schema with which a file was made."""
    attributes = {name: value for name, value in file.attrs.items() if name not in LATER_ATTRIBUTES}
    named = {
        name: np.broadcast_to(np.zeros((), dataset.dtype), (dataset.chunks[0], *dataset.shape[1:]))
        for name, dataset in leaf_datasets(file["trajectories"]).items()
    }
    compression = RolloutConfig.from_json(file.attrs["config"], str(file.filename)).compression
    return Schema(attributes, named, len(file["throughput/ranks"]), compression)


def _fill(source: Verification, destination: h5py.File, is_all: bool, tell: Tell) -> None:
    """Put into a new file the steps that `source` has checked, and what is known of the end of the run."""
    values = ValueChecks(source.root)
    table = copy_prefix(source.file, destination, source.num_steps, tell, values=values, is_last=True)
    TableWriter(destination["episodes"]).append(table.unfinished(source.num_steps))
    _copy_throughput(source.file["throughput"], destination["throughput"])
    if is_all and source.file.attrs["finished"].strip():
        destination.attrs.modify("finished", source.file.attrs["finished"])
    else:
        destination.attrs["recovered"] = utc_now()
    for dataset in leaf_datasets(destination).values():
        if dataset.name != "/throughput/ranks":
            ChunkWriter(dataset).seal()


def _copy_throughput(source: h5py.Group, destination: h5py.Group) -> None:
    env_steps, seconds = (source.attrs[name] for name in ("env_steps", "seconds"))
    intervals = source["intervals"][...]
    if seconds == 0 and len(intervals):  # The run was killed.
        env_steps, seconds = intervals["env_steps"][-1], intervals["time"][-1]
    destination.attrs.modify("env_steps", env_steps)
    destination.attrs.modify("seconds", seconds)
    TableWriter(destination["limit"]).append(source["limit"][...])
    if source["ranks"].id.get_num_chunks():
        fill(destination["ranks"], source["ranks"][...])


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Blame the new file for what goes wrong: what is read has been checked."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise StorageError(f"cannot write {path}: {system_words(error)} ({free_space(path)})") from error


def copy_prefix(
    source: h5py.File,
    destination: h5py.File,
    num_steps: int,
    tell: Tell = lambda doing: None,
    lost: Mapping[int, int] = NONE_LOST,
    values: ValueChecks | None = None,
    is_last: bool = False,
) -> EpisodeTable:
    """Copy and commit the first steps of a run, the episodes that ended in them, its faults and intervals.

    HDF5 checks every checksum on the way.  Return the table of episodes after these steps, with those under way.

    Parameters
    ----------
    lost
        Envs whose running episodes end here, truncated and faulted, and the step that they did not reproduce.
    values
        Counts the wrong values.
    is_last
        No steps follow.  Otherwise chunks that are not full are left so that writing can go on; see `chunks`.
    """
    _copy_trajectories(source["trajectories"], destination["trajectories"], num_steps, tell, values, is_last)
    table = _copy_episodes(source, destination, num_steps, tell, lost)
    TableWriter(destination["throughput/intervals"]).append(source["throughput/intervals"][...])
    destination.flush()
    destination["trajectories"].attrs.modify("num_steps", np.int64(num_steps))
    destination.flush()
    return table


def _copy_trajectories(
    source: h5py.Group, destination: h5py.Group, num_steps: int, tell: Tell, values: ValueChecks | None, is_last: bool
) -> None:
    for name, dataset in leaf_datasets(source).items():
        writer, num_rows = ChunkWriter(destination[name]), num_steps + name.startswith(OF_STATES)
        rows = math.lcm(dataset.chunks[0], writer.chunks[0])  # Both are powers of two: the larger of them.
        buffer = np.zeros((rows, *dataset.shape[1:]), dataset.dtype)
        for row in range(0, num_rows, rows):
            stop = min(rows, num_rows - row)
            tell(f"{dataset.name[1:]}, rows {row:,} to {row + stop - 1:,}")
            buffer[stop:] = np.zeros((), dataset.dtype)
            dataset.read_direct(buffer, np.s_[row : row + stop], np.s_[:stop])
            writer.append(buffer, row, stop, is_last=is_last and row + stop == num_rows)
            if values is not None:
                values.append(name, buffer, row, stop)
    if values is not None:
        values.write(destination)


def _copy_episodes(
    source: h5py.File, destination: h5py.File, num_steps: int, tell: Tell, lost: Mapping[int, int]
) -> EpisodeTable:
    """Copy faults and the episodes that have ended, those of lost envs too; return the table of all episodes."""
    faults, resets = committed_faults(source, num_steps), committed_resets(source, num_steps)
    config = RolloutConfig.from_json(source.attrs["config"], str(source.filename))
    table = make_table(config, source.attrs, faults, resets)
    if resets is not None:
        TableWriter(destination["resets"]).append(resets)
    for results in stored_results(source["trajectories"], num_steps):
        tell(f"rewards and ends from step {results.start:,} on")
        table.add(results, 0, len(results.rewards))
    table.take(num_steps)
    rows = committed_episodes(source, num_steps)
    rows = np.concatenate([rows[rows["terminated"] | rows["truncated"]], table.lose(lost, num_steps)])
    if lost:
        truncate(destination, lost, num_steps)
        rows = rows[np.lexsort((rows["env_index"], rows["start"] + rows["length"]))]
    TableWriter(destination["episodes"]).append(rows)
    again = [fault_row(index, num_steps - 1, f"did not reproduce step {step}") for index, step in lost.items()]
    TableWriter(destination["faults"]).append(np.concatenate([faults, np.array(again, FAULT)]))
    return table


def truncate(file: h5py.File, envs: Collection[int], num_steps: int) -> None:
    """Say of some envs that they were truncated in the last of `num_steps` steps."""
    writer = ChunkWriter(file["trajectories/truncations"])
    rows = writer.chunks[0]
    first = (num_steps - 1) // rows * rows
    chunk = np.zeros((rows, writer.dataset.shape[1]), np.bool_)
    # HDF5's own reading takes a chunk without checksum for one with it, as long as the file is open.
    for place in places(writer.dataset, first):
        data, _ = read_chunk(writer.dataset, place)
        part = data.view(np.bool_).reshape(writer.chunks)
        chunk[:, place[1] : place[1] + part.shape[1]] = part[:, : chunk.shape[1] - place[1]]
    chunk[num_steps - 1 - first, sorted(envs)] = True
    writer.num_rows = first
    writer.append(chunk, first, num_steps - first)
