"""Reading files, complete ones and unfinished ones, without MPI."""

import json
import os
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from mpi_rollout.errors import DataError, first_line
from mpi_rollout.storage.schema import FAULT, FORMAT, FORMAT_VERSION

Tell = Callable[[str], None]  # Is told what is being read, in a process that somebody watches.


def open_file(path: str) -> h5py.File:
    """Open a file of this program for reading, also while it is being written.

    Raises
    ------
    DataError
        There is none, or it is not one.
    """
    if not os.path.isfile(path):
        raise DataError(f"{path}: no such file")
    try:
        # Without HDF5's locks, which some file systems refuse: the superblock says whether somebody writes.
        file = h5py.File(path, "r", libver="latest", swmr=is_marked(path), locking=False)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path} is not a readable HDF5 file: {first_line(error)}") from error
    check_format(file, path)
    return file


def check_format(file: h5py.File, path: str) -> None:
    """Refuse files of other programs, and of later versions of this one."""
    if file.attrs.get("format") != FORMAT:
        raise DataError(f"{path} was not written by {FORMAT}")
    if file.attrs["format_version"] > FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {file.attrs['format_version']}, this program reads {FORMAT_VERSION}"
        )


def is_marked(path: str) -> bool:
    """Tell whether a file is being written in SWMR mode, or was when its writer was killed: only that mode reads it.

    Other files must not be read so.  That mode waits for what is missing to be written yet: in a truncated file,
    for hours.

    Raises
    ------
    OSError
        It is marked, but shorter than its superblock says.  The writer lets it grow first and says so later.
    """
    with open(path, "rb") as file:
        superblock = file.read(48)
        size = file.seek(0, os.SEEK_END)
    if superblock[:9] != b"\x89HDF\r\n\x1a\n\x03" or superblock[11:12] in (b"", b"\x00"):
        return False
    end = int.from_bytes(superblock[28:36], "little")
    if size < end:
        raise OSError(f"truncated file: it has {size} bytes of {end}")
    return True


def leaf_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """The datasets below a group by path, in alphabetical order."""
    found: dict[str, h5py.Dataset] = {}
    group.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return dict(sorted(found.items()))


def committed_episodes(file: h5py.File, num_steps: int | None = None) -> np.ndarray:
    """Read the rows of /episodes that lie in committed steps, or in the first `num_steps`.

    A commit writes episodes first: a writer killed amid one leaves rows of steps that do not count.
    """
    num_steps = int(file["trajectories"].attrs["num_steps"]) if num_steps is None else num_steps
    episodes = file["episodes"][...]
    return episodes[episodes["start"] + episodes["length"] <= num_steps]


def committed_faults(file: h5py.File, num_steps: int | None = None) -> np.ndarray:
    """Read the rows of /faults of committed steps, or of the first `num_steps`."""
    if num_steps is None and "trajectories" in file:
        num_steps = int(file["trajectories"].attrs["num_steps"])
    faults = file["faults"][...] if "faults" in file else np.zeros(0, FAULT)  # Files of before 0.1 have none.
    return faults if num_steps is None else faults[faults["step"] < num_steps]


def summary(path: str) -> dict[str, Any]:
    """What is in a file, as JSON-able data."""
    with open_file(path) as file:
        config = json.loads(file.attrs["config"])
        finished = file.attrs["finished"].decode().strip()
        found = {
            "file": path,
            "nbytes": os.path.getsize(path),
            "complete": bool(finished),
            "recovered": str(file.attrs.get("recovered", "")),
            "env": config["env"] or config["env_factory"],
            "config": config,
            "num_ranks": int(file.attrs["num_ranks"]),
            "hosts": json.loads(file.attrs["hosts"]),
            "mpi_library": file.attrs["mpi_library"],
            "versions": json.loads(file.attrs["versions"]),
            "started": file.attrs["started"],
            "finished": finished,
            "throughput": _throughput(file["throughput"]),
            "faults": [_fault(row) for row in committed_faults(file)],
        }
        if "trajectories" in file:
            found |= _trajectories(file)
        return found


def _fault(row: np.void) -> dict[str, Any]:
    return {"env_index": int(row["env_index"]), "step": int(row["step"]), "message": row["message"].decode()}


def _throughput(group: h5py.Group) -> dict[str, Any]:
    env_steps, seconds = int(group.attrs["env_steps"]), float(group.attrs["seconds"])
    limit = group["limit"][...]
    ratios = limit["rollout_env_steps_per_s"] / limit["limit_env_steps_per_s"]
    return {
        "env_steps": env_steps,
        "seconds": seconds,
        "env_steps_per_s": env_steps / seconds if seconds else 0.0,
        "ratio_to_limit": [float(ratio) for ratio in ratios],
    }


def _trajectories(file: h5py.File) -> dict[str, Any]:
    num_steps = int(file["trajectories"].attrs["num_steps"])
    episodes = committed_episodes(file)
    over = episodes[episodes["terminated"] | episodes["truncated"]]
    datasets = leaf_datasets(file["trajectories"])
    return {
        "num_steps": num_steps,
        "datasets": {name: {"shape": list(ds.shape), "dtype": str(ds.dtype)} for name, ds in datasets.items()},
        "num_transitions": int(episodes["length"].sum()),
        "episodes": {
            "ended": len(over),
            "terminated": int(episodes["terminated"].sum()),
            "truncated": int(episodes["truncated"].sum()),
            "under_way": len(episodes) - len(over),
            "return": _spread(over["return"]),
            "length": _spread(over["length"]),
        },
    }


def _spread(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "max": float(values.max()),
    }
