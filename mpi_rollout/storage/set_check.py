"""What the manifest of a complete set says of the whole run, as it follows from the shards.

Its tables are those of a single file.  Its columns are HDF5's virtual datasets, by which other programs see those of
the shards as one; their names are relative, so that file and folder can be moved together.
"""

import os

import h5py
import numpy as np

from mpi_rollout.errors import ContentError
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.shard_files import shard_path
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import Tell
from mpi_rollout.storage.values import merged_wrong

Extent = tuple[object, ...]  # First and last element of a selection, and their number; none of a whole dataset.
Source = tuple[str, str, Extent, Extent]


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
        with h5py.File("expected", "w", driver="core", backing_store=False) as like:
            for name in stored.leaves:
                tell(f"where the data of trajectories/{name} are")
                lay_out(like, path, name, stored)
                _check_column(name, manifest.file["trajectories"].get(name), like["trajectories"][name])
        if merged_wrong([(0, manifest.wrong_values())]) != wrong_values_of(stored):
            raise ContentError("the wrong values that its columns record are not those of its shards")


def _check_column(name: str, column: h5py.Dataset | None, expected: h5py.Dataset) -> None:
    """Raise ContentError if a virtual dataset is another one; the files that it names are not opened."""
    if column is None:
        raise ContentError(f"there is no trajectories/{name}")
    got, wanted = _sources_of(column), _sources_of(expected)
    if got != wanted:
        other = next((source for source in got if source not in wanted), ("less than all shards",))
        before, is_renamed, _ = str(other[0]).replace("%%", "%").partition(".shards/")
        back = f"; call the file {before} and its folder {before}.shards again, where other programs look for shards"
        make_one = ", or make one file of it with `python -m mpi_rollout recover`"
        way_out = back + make_one if is_renamed else ""
        raise ContentError(f"trajectories/{name} is not made of its shards, but of {other[0]}{way_out}")
    if (column.shape, column.dtype) != (expected.shape, expected.dtype):
        raise ContentError(f"trajectories/{name} should be {expected.dtype} {expected.shape}")


def _sources_of(dataset: h5py.Dataset) -> list[Source]:
    """Return what a virtual dataset is made of: files, datasets, and which part of each is where."""
    plan = dataset.id.get_create_plist()
    return [
        (
            plan.get_virtual_filename(number),
            plan.get_virtual_dsetname(number),
            *(_extent_of(space) for space in (plan.get_virtual_srcspace(number), plan.get_virtual_vspace(number))),
        )
        for number in range(plan.get_virtual_count())
    ]


def _extent_of(space: h5py.h5s.SpaceID) -> Extent:
    is_all = space.get_select_type() == h5py.h5s.SEL_ALL
    return () if is_all else (*space.get_select_bounds(), space.get_select_npoints())
