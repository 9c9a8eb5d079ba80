"""What an unfinished file says of the run that it is of: whether it is this one, and where it stood."""

import json
import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np

from mpi_rollout.config import DATA_OPTIONS, RolloutConfig, difference
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import UsageError, shortened
from mpi_rollout.storage.chunks import ChunkWriter, TableWriter, places, read_chunk
from mpi_rollout.storage.episodes import EpisodeTable, make_table, stored_results
from mpi_rollout.storage.objects import Tell
from mpi_rollout.storage.reader import committed_episodes, committed_faults, leaf_datasets
from mpi_rollout.storage.schema import FAULT, fault_row
from mpi_rollout.storage.values import ValueChecks

NONE_LOST: Mapping[int, int] = MappingProxyType({})


def check_same_run(config: RolloutConfig, stored: str, path: str, is_complete: bool = False) -> bool:
    """Refuse to go on with the file of another run; `stored` is its configuration, in JSON.

    Returns
    -------
    Whether the file is complete, of the same run with fewer steps: it can be extended.

    Raises
    ------
    UsageError
        Options that decide on the data differ; the message has them.
    DataError
        The file's options cannot be read.
    """
    before, now = (
        {name: getattr(options, name) for name in DATA_OPTIONS}
        for options in (RolloutConfig.from_json(stored, path), config)
    )
    has_fewer = is_complete and before["num_steps"] < now["num_steps"]
    if has_fewer:
        before["num_steps"] = now["num_steps"]
    advice = "give the same options to continue it, move it away, or use another --out"
    if is_complete and before["num_steps"] > now["num_steps"]:
        advice += " (more --num-steps extend a complete file, fewer do not cut it)"
    differing = [
        difference(name, before[name], now[name], lambda value: shortened(_json(value)))
        for name in now
        if _json(before[name]) != _json(now[name])
    ]
    if differing:
        raise UsageError(f"--out {config.out}: {path} is of another run: {'; '.join(differing)}; {advice}")
    return has_fewer


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def read_past(file: h5py.File, seed: int) -> Past:
    """Find where the envs of an unfinished file stood after its last commit."""
    num_steps = int(file["trajectories"].attrs["num_steps"])
    num_envs = int(file.attrs["num_envs"])
    rows = committed_episodes(file)
    rows = rows[rows["terminated"] | rows["truncated"]]
    starts = np.zeros(num_envs, np.int64)
    np.maximum.at(starts, rows["env_index"], rows["start"] + rows["length"] + 1)
    if num_steps:  # Also envs that were lost with their rank, and are to begin again: their rows are ends since.
        ends = file["trajectories/terminations"][num_steps - 1] | file["trajectories/truncations"][num_steps - 1]
        starts[ends] = num_steps + 1
    return Past(seed, num_steps, np.bincount(rows["env_index"], minlength=num_envs), starts)


def copy_prefix(
    source: h5py.File,
    destination: h5py.File,
    num_steps: int,
    tell: Tell = lambda doing: None,
    lost: Mapping[int, int] = NONE_LOST,
    values: ValueChecks | None = None,
    is_all: bool = False,
) -> EpisodeTable:
    """Copy and commit the first steps of a run, the episodes that ended in them, its faults and intervals.

    HDF5 checks every checksum on the way.

    Parameters
    ----------
    source
        Opened for reading; at least `num_steps` steps are committed.
    destination
        Just made by `Schema.create`.
    lost
        Envs whose running episodes end here, as truncated and faulted, and the step that they did not reproduce.
    values
        Counts the wrong values.
    is_all
        No steps follow.  Else chunks that are partly filled are left so that writing can go on: they have no checksum,
        are not compressed, and keep their room in the file when they are.

    Returns
    -------
    The table of episodes as it is after these steps: with those under way, to be gone on with.
    """
    for name, dataset in leaf_datasets(source["trajectories"]).items():
        num_rows = num_steps + name.startswith("observations")
        _copy_rows(dataset, ChunkWriter(destination["trajectories"][name]), num_rows, tell, values, is_all)
    if values is not None:
        values.write(destination["trajectories"])
    faults = committed_faults(source, num_steps)
    table = make_table(RolloutConfig.from_json(source.attrs["config"], str(source.filename)), faults)
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
    TableWriter(destination["throughput/intervals"]).append(source["throughput/intervals"][...])
    destination.flush()
    destination["trajectories"].attrs.modify("num_steps", np.int64(num_steps))
    destination.flush()
    return table


def _copy_rows(
    dataset: h5py.Dataset, writer: ChunkWriter, num_rows: int, tell: Tell, values: ValueChecks | None, is_all: bool
) -> None:
    rows = math.lcm(dataset.chunks[0], writer.chunks[0])  # Which are powers of two: the larger of them.
    buffer = np.zeros((rows, *dataset.shape[1:]), dataset.dtype)
    for row in range(0, num_rows, rows):
        stop = min(rows, num_rows - row)
        tell(f"{dataset.name[1:]}, rows {row:,} to {row + stop - 1:,}")
        buffer[stop:] = np.zeros((), dataset.dtype)
        dataset.read_direct(buffer, np.s_[row : row + stop], np.s_[:stop])
        writer.append(buffer, row, stop, is_last=is_all and row + stop == num_rows)
        if values is not None:
            values.append(dataset.name.removeprefix("/trajectories/"), buffer, row, stop)


def truncate(file: h5py.File, envs: Collection[int], num_steps: int) -> None:
    """Say of some envs that they were truncated in the last of `num_steps` steps."""
    writer = ChunkWriter(file["trajectories/truncations"])
    rows = writer.chunks[0]
    first = (num_steps - 1) // rows * rows
    chunk = np.zeros((rows, writer.dataset.shape[1]), np.bool_)
    # Not by HDF5's own reading, which takes a chunk without checksum for one with it as long as the file is open.
    for place in places(writer.dataset, first):
        data, _ = read_chunk(writer.dataset, place)
        part = data.view(np.bool_).reshape(writer.chunks)
        chunk[:, place[1] : place[1] + part.shape[1]] = part[:, : chunk.shape[1] - place[1]]
    chunk[num_steps - 1 - first, sorted(envs)] = True
    writer.num_rows = first
    writer.append(chunk, first, num_steps - first)
