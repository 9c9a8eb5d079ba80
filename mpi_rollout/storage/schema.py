"""What is in a file: groups, datasets, attributes; and how much room it takes.

All objects are made before the first step: a file in SWMR mode takes no new objects or attributes afterwards.
docs/reference/file-format.md has the same as tables.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import NEWEST, Rows, column_of
from mpi_rollout.errors import StorageError
from mpi_rollout.process.clock import PHASES
from mpi_rollout.process.host import ANYWAY, format_bytes, is_any_size
from mpi_rollout.storage.codecs import filter_options, pays
from mpi_rollout.storage.filters import GZIP_LEVEL
from mpi_rollout.storage.values import ValueChecks
from mpi_rollout.text import counted

FORMAT = "mpi_rollout"
# Raise it when older versions would misread a file.  A new option needs no new version: a reader knows a file's options
# by their names, see `stored_config.read_config`.
# 1: random actions were other ones for the same seed.  2: there was no list of chunks.
LISTED_SINCE = 3
FORMAT_VERSION = max(LISTED_SINCE, NEWEST)
SPAN_NBYTES = 2**23  # All chunks that hold one step: HDF5's readers keep 8 MiB; before version 2.0 they kept 1 MiB.
CHUNK_NBYTES = 2**16  # Smaller chunks take long to write and to find.
TOLD_NBYTES = 100_000_000  # The user is told how large a larger file is.

EPISODE = np.dtype(
    [
        ("env_index", "i8"),
        ("start", "i8"),
        ("length", "i8"),
        ("return", "f8"),
        ("seed", "i8"),
        ("terminated", "?"),
        ("truncated", "?"),
        ("faulted", "?"),
    ]
)
# An env that failed, did not reproduce its episode or was lost, and the step whose row says truncated for it.  Step -1
# is the first reset, which was then taken again.
FAULT = np.dtype([("env_index", "i8"), ("step", "i8"), ("message", "S256")])
# A reset by a trainer whose steps are recorded.  `step` is the first step after it, `seed` is -1 where it gave none.
# `cut`: the episode was under way, and the row before says truncated for it though the env did not.
RESET = np.dtype([("env_index", "i8"), ("step", "i8"), ("seed", "i8"), ("cut", "?"), ("options", "?")])
LATER_ATTRIBUTES = ("digest", "finished", "recovered")  # Attributes of the root group; the others are written first.
INTERVAL = np.dtype([("time", "f8"), ("env_steps", "i8"), ("env_steps_per_s", "f8")])
INTERVALS_PER_CHUNK = 256
Reports = Sequence[Mapping[str, Any]]  # What each rank says of itself at the end of a run.
# Where a chunk is that begins at `row` and `env`, and the CRC-32 of the first `num_checked` of its bytes in the file:
# of all, or of the rows that count where more will come.  `dataset` is a place in the list's attribute `datasets`.
CHUNK = np.dtype(
    [
        *(("dataset", "i8"), ("row", "i8"), ("env", "i8")),
        *(("offset", "i8"), ("nbytes", "i8"), ("filter_mask", "i8"), ("num_checked", "i8"), ("crc32", "u4")),
    ]
)
# `num_chunks` rows of the list count when `num_steps` are committed; `digest` is over all of these, see `next_digest`.
COMMIT = np.dtype([("num_steps", "i8"), ("num_chunks", "i8"), ("digest", "u1", (32,))])
LIST = "chunks", "commits"
LIMIT = np.dtype([("rollout_env_steps_per_s", "f8"), ("limit_env_steps_per_s", "f8")])
RANK = np.dtype([("rank", "i4"), ("host", "S64"), ("num_envs", "i4"), *((name, "f8") for name in PHASES)])
TABLES = {  # Tables to which rows are appended: the dtype, and the rows of a chunk.
    "episodes": (EPISODE, 1024),
    "faults": (FAULT, 64),
    "resets": (RESET, 256),
    "throughput/intervals": (INTERVAL, INTERVALS_PER_CHUNK),
    "throughput/limit": (LIMIT, 256),
}


@dataclass(frozen=True)
class Schema:
    """What is known about a file before its first step.

    Parameters
    ----------
    attributes
        Of the root group.
    named
        The block's arrays by their path below /trajectories; empty if no trajectories are stored.
    compression
        Of the trajectories: one of `config.COMPRESSIONS`.
    """

    attributes: Mapping[str, object]
    named: dict[str, np.ndarray]
    num_ranks: int
    compression: str = "none"

    def create(self, path: str, swmr_mode: bool = True, is_locked: bool = False) -> h5py.File:
        """Make the file with all its objects, empty.

        With `is_locked`, there is a file, which this process has made and locked; it is filled.  Otherwise a file of
        another process raises FileExistsError, and is not touched.
        """
        # `storage.ownership` keeps runs apart, not HDF5's own locks.
        file = h5py.File(path, "w" if is_locked else "x", libver="latest", locking=False)
        file.attrs["format"] = FORMAT
        file.attrs["format_version"] = FORMAT_VERSION
        for name, value in self.attributes.items():
            file.attrs[name] = value
        file.attrs["digest"] = digest_of(file.attrs)
        file.attrs["finished"] = np.bytes_(b" " * 32)  # Room for the time, which is put in at the end.
        if self.named:
            self._create_trajectories(file)
        for name in tables_of(self.attributes, bool(self.named)):
            create_table(file, name, *TABLES[name])
        self._create_throughput(file["throughput"])
        _create_list(file)
        if swmr_mode:
            file.swmr_mode = True
        return file

    def _create_trajectories(self, file: h5py.File) -> None:
        trajectories = file.create_group("trajectories")
        trajectories.attrs["num_steps"] = np.int64(0)
        for path, array in self.named.items():
            row_shape = array.shape[1:]
            options = {"maxshape": (None, *row_shape), "chunks": chunk_shape(array), "fletcher32": True}
            if pays(self.compression, array.dtype, array.shape[2:]):
                options |= filter_options(self.compression, array.dtype, GZIP_LEVEL)
            trajectories.create_dataset(path, (0, *row_shape), array.dtype, **options)
        ValueChecks(self.attributes).write(trajectories)

    def _create_throughput(self, throughput: h5py.Group) -> None:
        throughput.attrs["env_steps"] = np.int64(0)
        throughput.attrs["seconds"] = np.float64(0)
        throughput.create_dataset("ranks", (self.num_ranks,), RANK, chunks=(self.num_ranks,), fletcher32=True)


def is_recording(attributes: Mapping[str, object]) -> bool:
    """Tell from a root group's attributes whether a trainer took the steps of a file, not a run."""
    return "recorded_by" in attributes


def tables_of(attributes: Mapping[str, object], has_trajectories: bool) -> list[str]:
    """Return which of `TABLES` a file has."""
    has = {"episodes": has_trajectories, "resets": is_recording(attributes)}
    return [name for name in TABLES if has.get(name, True)]


def fault_row(env_index: int, step: int, message: str) -> tuple[int, int, bytes]:
    """Return a row of /faults; a message that is too long loses its end."""
    room = FAULT["message"].itemsize
    return env_index, step, message.encode(errors="backslashreplace")[:room].decode(errors="ignore").encode()


def rank_rows(reports: Reports) -> np.ndarray:
    """Return the rows of /throughput/ranks from what the ranks reported."""
    rows = np.zeros(len(reports), RANK)
    for row, report in zip(rows, reports, strict=True):
        row["rank"], row["host"], row["num_envs"] = report["rank"], report["host"].encode(), report["num_envs"]
        for phase in PHASES:
            row[phase] = report["seconds"][phase]
    return rows


def digest_of(attributes: Mapping[str, object]) -> str:
    """Return the SHA-256 of the attributes written before the first step: HDF5 has no checksum for their texts."""
    texts = {name: str(value) for name, value in attributes.items() if name not in LATER_ATTRIBUTES}
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def create_table(file: h5py.File, name: str, dtype: np.dtype, rows_per_chunk: int, has_checksums: bool = True) -> None:
    """Make an empty dataset of one axis, to which rows are appended."""
    shape, most, chunks = (0,), (None,), (rows_per_chunk,)
    file.create_dataset(name, shape, dtype, maxshape=most, chunks=chunks, fletcher32=has_checksums)


def _create_list(file: h5py.File) -> None:
    """Make the list of the chunks of all datasets that there are."""
    names = list(leaf_datasets(file))
    create_table(file, "chunks", CHUNK, 256, has_checksums=False)
    file["chunks"].attrs["datasets"] = json.dumps(names)
    create_table(file, "commits", COMMIT, 64, has_checksums=False)


def leaf_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return the datasets below a group by path, in alphabetical order."""
    datasets: dict[str, h5py.Dataset] = {}
    group.visititems(lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return dict(sorted(datasets.items()))


def is_sparse(dataset: h5py.Dataset) -> bool:
    """Tell whether chunks that have zeros alone are left out of a dataset: few of its rows have values."""
    group, _, name = str(dataset.name)[1:].partition("/")
    return group == "trajectories" and column_of(name).rows is Rows.ENDS


def listed_names(file: h5py.File) -> list[str]:
    """Return the datasets of a file's list of chunks, by number; the file was made by this process."""
    names: list[str] = json.loads(file["chunks"].attrs["datasets"])
    return names


def first_digest(attributes: Mapping[str, object]) -> bytes:
    """Return the digest of an empty list; it belongs to the file with this root group."""
    return hashlib.sha256(str(attributes["digest"]).encode()).digest()


def next_digest(before: bytes, num_steps: int, rows: np.ndarray) -> bytes:
    """Return the digest of a list to which a commit of `num_steps` steps adds rows: a SHA-256."""
    return hashlib.sha256(before + num_steps.to_bytes(8, "little", signed=True) + rows.tobytes()).digest()


def chunk_shape(array: np.ndarray) -> tuple[int, ...]:
    """Choose chunks of some steps of a few envs; a block is a whole number of chunks.

    A reader of one env's episode reads the other envs of its chunks too, so there should be few of them: one, for
    images.  A reader of step after step finds the chunks of all envs in HDF5's cache, unless one step is larger.
    """
    num_rows, num_envs, *shape = array.shape
    rows = 1
    while 2 * rows <= num_rows and 2 * rows * array[0].nbytes <= SPAN_NBYTES:
        rows *= 2
    least = -(-CHUNK_NBYTES // max(rows * array[0, 0].nbytes, 1))
    parts = max(num_envs // least, 1)
    return (rows, -(-num_envs // parts), *(max(size, 1) for size in shape))


def rows_per_block(row_nbytes: int, num_steps: int, block_nbytes: int = 2**24) -> int:
    """Choose a power of two, so that blocks are whole numbers of chunks; bounded in bytes, for images, and in steps."""
    rows = 1
    while 2 * rows * row_nbytes <= block_nbytes and rows < min(num_steps, 1024):
        rows *= 2
    return rows


def check_free_space(config: RolloutConfig, row_nbytes: int, old_nbytes: int = 0) -> str:
    """Refuse a file that its file system has no room for; return what to tell the user, "" for a small file.

    The size of a compressed one is not known before: it is told, and not refused.

    Parameters
    ----------
    row_nbytes
        Of one step of all envs.
    old_nbytes
        Of the unfinished file that is continued, until the new one has all of it.

    Raises
    ------
    StorageError
        There is no room.
    """
    if not config.trajectories:
        return ""
    nbytes, is_compressed = row_nbytes * config.num_steps, config.compression != "none"
    folder = os.path.dirname(config.path)
    free = shutil.disk_usage(folder).free
    data = f"{counted(config.num_envs, 'env')} x {counted(config.num_steps, 'step')}"
    size = f"{data} take {'at most' if is_compressed else 'about'} {format_bytes(nbytes)} in {config.out}"
    needed = max(nbytes - old_nbytes, min(old_nbytes, nbytes))
    if needed > free and not is_compressed and not is_any_size():
        ways_out = f"use fewer steps or envs, another --out, --compression gzip, {ANYWAY}"
        raise StorageError(f"{size}, and {folder} has {format_bytes(free)} free; {ways_out}")
    return f"{size} ({format_bytes(free)} free there)" if nbytes >= TOLD_NBYTES else ""
