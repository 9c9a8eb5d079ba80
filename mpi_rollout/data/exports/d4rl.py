"""D4RL's files: all transitions one after the other, in flat arrays.

`timeouts` says where an episode was cut, also by the end of the data, and `next_observations` has every last one.
"""

import os
from collections.abc import Iterator, Sequence

import h5py
import numpy as np

from mpi_rollout.data.columns import named_arrays
from mpi_rollout.data.episodes import Arrays, Episode
from mpi_rollout.data.exports.minari import extras_name, rows_per_chunk
from mpi_rollout.data.exports.minari_metadata import name_of_env, policies_of
from mpi_rollout.data.exports.selection import (
    Options,
    check_room,
    counts_of,
    exported_rows,
    open_files,
    read,
    row_nbytes,
)
from mpi_rollout.data.run_data import RunData
from mpi_rollout.errors import DataError
from mpi_rollout.storage.filters import GZIP_LEVEL
from mpi_rollout.storage.new_files import closing_whole, writing
from mpi_rollout.storage.untrusted import Tell

BLOCK_NBYTES = 2**24  # The size of columns before they are written.
ARRAY_NBYTES = 2**8  # What an array takes besides its data: short episodes have little else.
LOG_PROB = "log_prob"


def export(tell: Tell, path: str, files: Sequence[str], out: str, options: Options) -> dict[str, object]:
    """Write a file, in a child process (see `storage.sandbox`); return what there is to say about it."""
    with open_files(files, options.get("agent")) as data:
        check_same_columns(data.files)
        tell("reading the list of its episodes")
        rows = exported_rows(data)
        counts = counts_of(rows)
        check_room(os.path.dirname(out), 2 * counts["steps"] * row_nbytes(data), options["compression"])
        with writing(out), closing_whole(_new_file(out)) as file:
            num_written = 0
            for block in blocks_of(read(tell, data, rows), options["float32"]):
                if num_written == 0:
                    for name, array in block.items():
                        _create(file, name, counts["steps"], array, options["compression"])
                for name, array in block.items():
                    file[name][num_written : num_written + len(array)] = array
                num_written += len(block["rewards"])
            file["metadata/algorithm"] = options["algorithm_name"] or policies_of(data.files)
            file["metadata/env"] = name_of_env(data.files[0])
            is_flat = isinstance(file["observations"], h5py.Dataset)
            file.flush()
        has_ended = rows["terminated"] | rows["truncated"]
        is_unknown = has_ended & np.array([not file.knows_final for file in data.files])[rows["file"]]
    return {**counts, "unknown": int(is_unknown.sum()), "nbytes": os.path.getsize(out), "is_flat": is_flat}


def check_same_columns(files: Sequence[RunData]) -> None:
    """Raise DataError if several files have other infos, or the policies gave other extras: all rows have the same."""
    first, *others = map(_kinds, files)
    for file, kinds in zip(files[1:], others, strict=True):
        if differing := first.items() ^ kinds.items():
            name = min((name for name, _ in differing), key=lambda name: ("/_" in name, name))  # No mask.
            raise DataError(f"{files[0].path} and {file.path} do not have the same {name}; export each by itself")


def _kinds(file: RunData) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    groups = {"infos": file.infos, "extras": file.extras}
    columns = (column for name, tree in groups.items() for column in named_arrays(name, tree))
    return {name: (column.dtype, column.shape[2:]) for name, column in columns}


def blocks_of(episodes: Iterator[Episode], float32: bool = False) -> Iterator[Arrays]:
    """Join the columns of episodes until they have BLOCK_NBYTES; a larger episode is a block by itself."""
    waiting, waiting_nbytes = list[Arrays](), 0
    for episode in episodes:
        columns = {name: _converted(array, float32) for name, array in columns_of(episode).items()}
        nbytes = sum(array.nbytes + ARRAY_NBYTES for array in columns.values())
        if waiting and waiting_nbytes + nbytes > BLOCK_NBYTES:
            yield _joined(waiting)
            waiting, waiting_nbytes = [], 0
        waiting.append(columns)
        waiting_nbytes += nbytes
    yield _joined(waiting)


def _joined(waiting: Sequence[Arrays]) -> Arrays:
    if len(waiting) == 1:
        return waiting[0]
    return {name: np.concatenate([columns[name] for columns in waiting]) for name in waiting[0]}


def _converted(array: np.ndarray, float32: bool) -> np.ndarray:
    with np.errstate(over="ignore"):  # Larger numbers become infinity.
        return array.astype(np.float32) if float32 and array.dtype.kind == "f" else array


def _new_file(path: str) -> h5py.File:
    """Make a file without a cache of chunks.

    HDF5 does not say at once what it could not write of a cache, and may crash later: on a full disk.  Of the chunks of
    a block only the first and the last one are then written twice.
    """
    return h5py.File(path, "x", locking=False, rdcc_nbytes=0)


def _create(file: h5py.File, name: str, num_rows: int, array: np.ndarray, compression: str) -> None:
    options: dict[str, object] = {}
    if compression == "gzip" and array[0].size:
        options = {"compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
        options["chunks"] = (rows_per_chunk(array, num_rows), *array.shape[1:])
    file.create_dataset(name, (num_rows, *array.shape[1:]), array.dtype, **options)


def columns_of(episode: Episode) -> Arrays:
    """Return the arrays of an episode by their paths in the file, (length, ...) each."""
    observations = dict(named_arrays("observations", episode.observations))
    columns = {name: array[:-1] for name, array in observations.items()}
    columns |= dict(named_arrays("actions", episode.actions))
    columns |= {"rewards": episode.rewards, "terminals": episode.terminations}
    columns["timeouts"] = episode.truncations.copy()
    columns["timeouts"][-1] |= not (episode.terminated or episode.truncated)
    columns |= {f"next_{name}": array[1:] for name, array in observations.items()}
    infos = dict(named_arrays("infos", episode.infos))
    extras = dict(named_arrays("infos", episode.extras))
    if f"infos/{LOG_PROB}" in extras:
        extras["infos/action_log_probs"] = extras.pop(f"infos/{LOG_PROB}")
    for name in infos.keys() & extras.keys():  # The env and the policy give something of one name.
        extras[name.replace("infos", f"infos/{extras_name(episode.infos)}", 1)] = extras.pop(name)
    return columns | extras | {name: array[: episode.length] for name, array in infos.items()}
