"""A Minari data set: `main_data.hdf5` and `metadata.json`, as Minari 0.5.4 loads them.

It is written in a child process, see `storage.sandbox`, into a folder which nobody else knows yet.  Arrays are
contiguous; where a data set is compressed, the larger ones are compressed chunks.
"""

import json
import os
from collections.abc import Container, Sequence
from functools import cache, partial

import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s, h5t

from mpi_rollout.core.spaces import Tree, map_tree
from mpi_rollout.data.columns import named_parts
from mpi_rollout.data.episodes import Episode
from mpi_rollout.data.exports.minari_metadata import metadata_of
from mpi_rollout.data.exports.selection import (
    Options,
    check_room,
    counts_of,
    exported_rows,
    open_files,
    read,
    row_nbytes,
)
from mpi_rollout.data.opening import SeveralRuns
from mpi_rollout.storage.filters import GZIP_LEVEL
from mpi_rollout.storage.new_files import closing_whole, writing
from mpi_rollout.storage.untrusted import Tell

MAIN, METADATA = "main_data.hdf5", "metadata.json"
LARGE_STEP_NBYTES = 2**10  # Smaller steps are not compressed by default: it takes long, and saves little room.
GROUP_NBYTES = 3000  # What HDF5 needs for an episode besides its data.
STATISTICS = tuple(f"rewards_{name}" for name in ("sum", "mean", "std", "max", "min"))
CHUNK_NBYTES = 2**20
LEAST_NBYTES = 2**12  # Smaller leaves are not compressed.
META_NBYTES = 2**20  # HDF5 takes room for groups and datasets by so many bytes.
SCALAR = h5s.create(h5s.SCALAR)
type_of = cache(partial(h5t.py_create, logical=True))


def export(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> dict[str, object]:
    """Write a data set; return what there is to say about it."""
    main = os.path.join(folder, MAIN)
    with open_files(files, options.get("agent")) as data:
        tell("reading the list of its episodes")
        metadata, notes = metadata_of(data, options)  # Refuses what Minari cannot have.
        rows, compression = exported_rows(data), compression_of(data, options)
        counts = counts_of(rows)
        check_room(folder, counts["steps"] * row_nbytes(data) + len(rows) * GROUP_NBYTES, compression)
        with writing(main):
            with closing_whole(EpisodeGroups(main, compression == "gzip")) as groups, np.errstate(all="ignore"):
                for episode in read(tell, data, rows):
                    columns = columns_of(episode)
                    groups.write(columns, attributes_of(episode.row, columns["rewards"]))
            nbytes = os.path.getsize(main)
            totals = {"total_episodes": counts["episodes"], "total_steps": counts["steps"]}
            with open(os.path.join(folder, METADATA), "w") as file:
                json.dump(totals | metadata | {"dataset_size": round(nbytes / 1e6, 1)}, file)
    return {**counts, "nbytes": nbytes, "notes": notes}


def compression_of(data: SeveralRuns, options: Options) -> str:
    """Return the compression of the data set: the user's choice; else large steps keep that of the files."""
    pays = row_nbytes(data) >= LARGE_STEP_NBYTES and any(file.config.compression != "none" for file in data.files)
    return str(options.get("compression") or ("gzip" if pays else "none"))


def columns_of(episode: Episode) -> dict[str, Tree]:
    """Return the members of an episode's group, as Minari names them."""
    truncations = episode.truncations
    if not (episode.terminated or episode.truncated):  # The end of the data has cut it: Minari's way to say so.
        truncations = truncations.copy()
        truncations[-1] = True
    return {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": truncations,
        "infos": infos_of(episode),  # An empty group, where there are none: without it Minari cannot print an episode.
    }


def infos_of(episode: Episode) -> dict[str, Tree]:
    """Return infos, and what the policy gave besides actions as `extras`, all of length + 1."""
    extras = episode.extras
    named = {**episode.infos, **({extras_name(episode.infos): extras} if extras else {})}
    return {name: map_tree(partial(_longer, num_rows=episode.length + 1), tree) for name, tree in named.items()}


def extras_name(infos: Container[str]) -> str:
    """Return a name for the group of extras beside infos: an env may give an info of the usual name."""
    return "extras" if "extras" not in infos else "policy_extras"


def _longer(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Add a row of zeros if there is one too few: no policy was asked about the last observation."""
    return rows if len(rows) == num_rows else np.concatenate([rows, np.zeros_like(rows[:1])])


def attributes_of(row: np.void, rewards: np.ndarray) -> dict[str, float]:
    """Return the attributes of an episode's group: what Minari's collector stores, to the last bit."""
    number, length, seed = int(row["number"]), len(rewards), int(row["seed"])
    total = np.add.reduce(rewards)
    mean = total / length
    away = rewards - mean
    std = np.sqrt(np.add.reduce(away * away) / length)
    statistics = (total, mean, std, np.maximum.reduce(rewards), np.minimum.reduce(rewards))
    values = {"id": number, "total_steps": length, **({"seed": seed} if seed >= 0 else {})}
    return values | dict(zip(STATISTICS, map(float, statistics), strict=True))


def rows_per_chunk(array: np.ndarray, num_rows: int) -> int:
    """Return the number of rows in a compressed chunk of a dataset that has so many rows of this kind."""
    return min(max(CHUNK_NBYTES // max(array[0].nbytes, 1), 1), num_rows)


class EpisodeGroups:
    """A file of groups `episode_0`, `episode_1`, ..., written in any order.

    Its format is that of HDF5 1.8: every reader knows it.  Leaves of `LEAST_NBYTES` and more may be compressed.  h5py's
    own `create_dataset` and `attrs` take longer.
    """

    def __init__(self, path: str, compresses: bool):
        self._compresses = compresses
        access = h5p.create(h5p.FILE_ACCESS)
        access.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
        access.set_meta_block_size(META_NBYTES)
        access.set_fclose_degree(h5f.CLOSE_STRONG)
        access.set_file_locking(False, True)
        self._file = h5f.create(os.fsencode(path), h5f.ACC_EXCL, fapl=access)
        self._root = h5g.open(self._file, b"/")

    def close(self) -> None:
        """Write what is in memory, and close the file."""
        h5f.flush(self._file)
        self._file.close()

    def write(self, columns: dict[str, Tree], attributes: dict[str, float]) -> None:
        """Write the group of an episode; `columns` are its members, arrays in dicts and tuples."""
        group = h5g.create(self._root, b"episode_%d" % attributes["id"])
        for name, value in attributes.items():
            number = np.asarray(value)
            kind = type_of(number.dtype)
            h5a.create(group, name.encode(), kind, SCALAR).write(number, kind)
        for name, tree in columns.items():
            self._tree(group, name.encode(), tree)

    def _tree(self, parent: h5g.GroupID, name: bytes, tree: Tree) -> None:
        if isinstance(tree, np.ndarray):
            return self._leaf(parent, name, tree)
        group = h5g.create(parent, name)
        for key, part in named_parts(tree):
            self._tree(group, key.encode(), part)

    def _leaf(self, parent: h5g.GroupID, name: bytes, array: np.ndarray) -> None:
        kind = type_of(array.dtype)
        # HDF5 copies each property list but its own default one, which takes a fifth of the time of a small dataset.
        plan = self._chunked(array) if self._compresses and array.nbytes >= LEAST_NBYTES else None
        dataset = h5d.create(parent, name, kind, h5s.create_simple(array.shape), plan)
        if array.size:
            dataset.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(array), kind)

    def _chunked(self, array: np.ndarray) -> h5p.PropDCID:
        plan = h5p.create(h5p.DATASET_CREATE)
        plan.set_chunk((rows_per_chunk(array, len(array)), *array.shape[1:]))
        if array.dtype.itemsize > 1:
            plan.set_shuffle()
        plan.set_deflate(GZIP_LEVEL)
        plan.set_fill_time(h5d.FILL_TIME_NEVER)
        return plan
