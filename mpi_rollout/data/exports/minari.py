"""A Minari data set: `main_data.hdf5` and `metadata.json`, as Minari 0.5 loads them.

Each task here runs in a child process, see `storage.child`, and gets the folder of the new data set, which nobody else
knows yet.  Several ranks write a share of the episodes each.
"""

import json
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mpi_rollout.data.exports import minari_bytes, minari_gzip
from mpi_rollout.data.exports.minari_metadata import facts_of
from mpi_rollout.data.exports.selection import allow_longest, exported_rows, open_files, row_nbytes
from mpi_rollout.data.exports.writing import check_room, writing
from mpi_rollout.storage.objects import Tell

MAIN, ROWS, METADATA = "main_data.hdf5", "rows.npy", "metadata.json"
LARGE_STEP_NBYTES = 2**10  # HDF5 makes compressed arrays, which takes long where they are many and small.
GROUP_NBYTES = 2000  # What HDF5 needs for an episode besides its data.
Options = Mapping[str, Any]


def export(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> dict[str, Any]:
    """Write a data set, in one process; return what there is to say about it."""
    plan(tell, path, files, folder, options)
    write_share(tell, path, files, folder, options, 0, 1)
    return finish(tell, path, files, folder, options, 1)


def plan(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> None:
    """Note which episodes there are: a run may be writing the file, and all ranks must mean the same."""
    with open_files(files) as data:
        tell("reading the list of its episodes")
        facts_of(data, options)  # Refuses what Minari cannot have.
        rows = exported_rows(data)
        nbytes = int(rows["length"].sum()) * row_nbytes(data) + len(rows) * GROUP_NBYTES
        check_room(folder, nbytes, compression_of(data, options))
        with writing(folder):
            np.save(os.path.join(folder, ROWS), rows)


def write_share(
    tell: Tell, path: str, files: Sequence[str], folder: str, options: Options, share: int, num_shares: int
) -> None:
    """Write the episodes of one of several shares."""
    main = os.path.join(folder, MAIN)
    with open_files(files) as data, writing(main):
        allow_longest(data, rows := _planned(folder))
        _way(data, options).write_share(tell, data, rows, main, share, num_shares)


def finish(
    tell: Tell, path: str, files: Sequence[str], folder: str, options: Options, num_shares: int
) -> dict[str, Any]:
    """Put the shares together, write the metadata; return what there is to say."""
    main = os.path.join(folder, MAIN)
    with open_files(files) as data, writing(main):
        rows, facts = _planned(folder), facts_of(data, options)
        _way(data, options).join(tell, data, rows, main, num_shares)
        os.unlink(os.path.join(folder, ROWS))
        nbytes, counts = os.path.getsize(main), {"total_episodes": len(rows), "total_steps": int(rows["length"].sum())}
        _write_json(os.path.join(folder, METADATA), counts | facts.metadata | {"dataset_size": round(nbytes / 1e6, 1)})
    unfinished = int((~rows["terminated"] & ~rows["truncated"]).sum())
    told = {"episodes": len(rows), "steps": counts["total_steps"], "unfinished": unfinished}
    return {**told, "nbytes": nbytes, "notes": facts.notes}


def _way(data: Any, options: Options) -> ModuleType:
    return minari_gzip if compression_of(data, options) == "gzip" else minari_bytes


def compression_of(data: Any, options: Options) -> str:
    """Return how the data set is compressed: as the user says, else large steps as they are in the files."""
    files = getattr(data, "files", [data])
    pays = row_nbytes(data) >= LARGE_STEP_NBYTES and any(file.config.compression != "none" for file in files)
    return str(options.get("compression") or ("gzip" if pays else "none"))


def _planned(folder: str) -> np.ndarray:
    return np.asarray(np.load(os.path.join(folder, ROWS), allow_pickle=False))


def _write_json(path: str, values: Mapping[str, Any]) -> None:
    with open(path, "w") as file:
        json.dump(values, file)
