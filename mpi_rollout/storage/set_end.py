"""The end of a set: when all shards are complete, its manifest is written once more, checked, and gets its name.

What it says of the whole run follows from the shards.  Its tables are those of a single file.  Its columns are HDF5's
virtual datasets, by which other programs see those of the shards as one; their names are relative, so that file and
folder can be moved together.
"""

import os
from contextlib import closing
from json import dumps
from math import prod

import h5py
import numpy as np
from h5py import h5s

from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.new_files import closing_whole
from mpi_rollout.storage.ownership import give_name, identity, make_locked, removed
from mpi_rollout.storage.schema import INTERVAL, LATER_ATTRIBUTES, LIMIT, Ending, Schema, padded, rank_rows
from mpi_rollout.storage.shard_files import shard_path
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import Tell
from mpi_rollout.storage.values import merged_wrong

# A file, its dataset, whether all of that is taken; the first and last element that it is here, and their number.
Source = tuple[str, str, bool, tuple[object, ...], int]


def complete_manifest(
    path: str, ending: Ending, intervals: np.ndarray | None = None, replaces: tuple[int, int] | None = None
) -> str:
    """Make the complete manifest `path` of a set, in place of its `.part`, whose lock this process holds; return it.

    All shards must be complete; they get their names here.  Until then a complete set that is extended keeps its files.
    After a kill in between, the names from before are refused, the `.part` is whole, and this can be done once more.

    Parameters
    ----------
    intervals
        The rows of /throughput/intervals; None where one team has written all shards: the first one has its rows.
    replaces
        The `ownership.identity` of the complete manifest of the run before it was extended.
    """
    part, new = f"{path}.part", f"{path}.part.new"
    with closing(StoredRun(part)) as stored:
        if unfinished := [part.file.path for part in stored.parts if not part.file.is_complete]:
            raise DataError(f"{unfinished[0]} is not complete, so that its set cannot be")
        files = [(part.envs, part.file) for part in stored.parts]
        shards = [[envs.start, len(envs), file.num_steps, file.last_digest] for envs, file in files]
        attributes = {name: value for name, value in stored.attributes.items() if name not in LATER_ATTRIBUTES}
        # Of the start that ends the run, as in a single file.
        last = {"num_ranks": len(ending.ranks), "hosts": dumps([rank["host"] for rank in ending.ranks])}
        schema = Schema(attributes | last | {"shards": dumps(shards)}, 1)
        if intervals is None:
            with checked(files[0][1].path, lambda doing: None) as first:
                intervals = first.table("throughput/intervals", INTERVAL)
        lock = make_locked(new)
        with removed(new):
            with closing_whole(FileDatasets(schema.create(new, swmr_mode=False, is_locked=True))) as datasets:
                _fill(datasets, path, stored, ending, intervals)
            check_set(lambda doing: None, new, stored)
            for shard in (shard_path(path, envs) for envs, _ in files):
                if os.path.lexists(f"{shard}.part"):
                    give_name(f"{shard}.part", shard, identity(shard))
            os.replace(new, part)
            give_name(part, path, replaces)
        lock.release()
    return path


def _fill(datasets: FileDatasets, path: str, stored: StoredRun, ending: Ending, intervals: np.ndarray) -> None:
    file, tables, num_steps = datasets.file, datasets.tables, stored.num_steps
    for name in stored.leaves:
        lay_out(file, path, name, stored)
    for wrong in wrong_values_of(stored):
        counts = int(wrong["count"]), int(wrong["step"]), int(wrong["env_index"])
        datasets.values.of[str(wrong["dataset"])].counts[str(wrong["kind"])] = counts
    tables["episodes"].append(episodes_of(stored))
    tables["faults"].append(stored.faults)
    tables["throughput/intervals"].append(intervals)
    datasets.commit(num_steps)
    tables["throughput/limit"].append(np.array(ending.limit, LIMIT))
    datasets.note_starts(max(part.file.starts for part in stored.parts))
    datasets.end(num_steps, ending.env_steps, ending.seconds, rank_rows(ending.ranks), is_last=True)
    for name, words in (("finished", ending.finished), ("advice", ending.advice)):
        file.attrs.modify(name, padded(name, words))


def episodes_of(stored: StoredRun) -> np.ndarray:
    """Return the table of episodes: those that have ended, then those that the end of the data cuts."""
    return np.concatenate([stored.ended, stored.unfinished()])


def lay_out(file: h5py.File, path: str, name: str, stored: StoredRun) -> None:
    """Make the virtual dataset of a column."""
    leaf, num_rows = stored.leaves[name], stored.num_rows(name)
    layout = h5py.VirtualLayout((num_rows, stored.config.num_envs, *leaf.shape), leaf.dtype)
    for envs in (part.envs for part in stored.parts):
        shape = (num_rows, len(envs), *leaf.shape)
        source = h5py.VirtualSource(_relative(path, envs), f"trajectories/{name}", shape, leaf.dtype)
        layout[:, envs.start : envs.stop] = source
    file.create_virtual_dataset(f"trajectories/{name}", layout)


def _relative(path: str, envs: range) -> str:
    """Return the name of a shard as HDF5 finds it from the manifest: a percent sign there has a meaning."""
    name = shard_path(path, envs)
    return os.path.join(os.path.basename(os.path.dirname(name)), os.path.basename(name)).replace("%", "%%")


def wrong_values_of(stored: StoredRun) -> list[dict[str, str | int]]:
    """Return the wrong values that the shards of a set record."""
    return merged_wrong([(part.envs.start, part.file.wrong_values) for part in stored.parts])


def check_set(tell: Tell, path: str, stored: StoredRun) -> None:
    """Compare a complete manifest with what its shards say, except for their columns; DataError if something differs.

    `stored` has the tables of the shards.
    """
    with checked(path, tell) as manifest:
        tables = {"episodes": episodes_of(stored), "faults": stored.faults}
        for name, expected in tables.items():
            got = manifest.table(name, expected.dtype)
            if got.tobytes() != expected.tobytes():
                raise ContentError(f"{name} has {len(got):,} rows, which are not the {len(expected):,} of its shards")
        for name in stored.leaves:
            tell(f"where the data of trajectories/{name} are")
            _check_column(name, manifest.file["trajectories"].get(name), path, stored)
        if merged_wrong([(0, manifest.wrong_values())]) != wrong_values_of(stored):
            raise ContentError("the wrong values that its columns record are not those of its shards")


def _check_column(name: str, column: h5py.Dataset | None, path: str, stored: StoredRun) -> None:
    """Raise ContentError if a virtual dataset is another one; the files that it names are not opened."""
    if column is None:
        raise ContentError(f"there is no trajectories/{name}")
    leaf, got = stored.leaves[name], _sources_of(column)
    shape = stored.num_rows(name), stored.config.num_envs, *leaf.shape
    wanted = [_source_of(path, name, part.envs, shape) for part in stored.parts]
    if got != wanted:
        other = next((source for source in got if source not in wanted), ("less than all shards",))
        before, is_renamed, _ = str(other[0]).replace("%%", "%").partition(".shards/")
        back = f"; call the file {before} and its folder {before}.shards again, where other programs look for shards"
        make_one = ", or make one file of it with `python -m mpi_rollout recover`"
        way_out = back + make_one if is_renamed else ""
        raise ContentError(f"trajectories/{name} is not made of its shards, but of {other[0]}{way_out}")
    if (column.shape, column.dtype) != (shape, leaf.dtype):
        raise ContentError(f"trajectories/{name} should be {leaf.dtype} {shape}")


def _sources_of(column: h5py.Dataset) -> list[Source]:
    return [
        (name, dataset, part.get_select_type() == h5s.SEL_ALL, here.get_select_bounds(), here.get_select_npoints())
        for here, name, dataset, part in column.virtual_sources()
    ]


def _source_of(path: str, name: str, envs: range, shape: tuple[int, ...]) -> Source:
    num_rows, _, *inner = shape
    first, last = (0, envs.start, *(0 for _ in inner)), (num_rows - 1, envs.stop - 1, *(size - 1 for size in inner))
    return _relative(path, envs), f"trajectories/{name}", True, (first, last), prod((num_rows, len(envs), *inner))
