"""What is in a file: groups, datasets, attributes; how it is made and checked, and how much room it takes.

All objects are made before the first step: a file in SWMR mode takes no new objects or attributes afterwards.
docs/reference/file-format.md has the same as tables.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig, read_config, versions
from mpi_rollout.core.columns import Rows, column_of, stored_leaves
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import ContentError
from mpi_rollout.process import hash_seed
from mpi_rollout.process.clock import PHASES
from mpi_rollout.storage.filters import GZIP_LEVEL, compression_of, filter_options, pays, why_missing
from mpi_rollout.storage.hdf5_format import LIBVER
from mpi_rollout.storage.untrusted import parsed
from mpi_rollout.storage.values import ValueChecks, described_agents, described_leaves

FORMAT = "mpi_rollout"
# The one version that is read.  Raise it when the same options give other data, or a file has another meaning.  A new
# option needs no new version: a reader knows the options of a file by their names, see `config.read_config`.
FORMAT_VERSION = 4
SPAN_NBYTES = 2**23  # All chunks that hold one step: HDF5's readers keep 8 MiB; before version 2.0 they kept 1 MiB.
BLOCK_NBYTES = 2**24
FEW_STEPS, LARGE_BLOCK_NBYTES = 8, 2**26  # Blocks of large rows, such as images, hold a fragment of so many steps.
CHUNK_NBYTES = 2**16  # Smaller chunks take long to write and to find.

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
RETURN_OF = "return_"  # What stands before an agent's name.
# An env that failed, did not reproduce its episode or was lost, and the step whose row says truncated for it.  Step -1
# is the first reset, which was then taken again.
FAULT = np.dtype([("env_index", "i8"), ("step", "i8"), ("message", "S256")])
# A reset by a trainer whose steps are recorded.  `step` is the first step after it, `seed` is -1 where it gave none.
# `cut`: the episode was under way, and the row before says truncated for it though the env did not.
RESET = np.dtype([("env_index", "i8"), ("step", "i8"), ("seed", "i8"), ("cut", "?"), ("options", "?")])
# Attributes of the root group; the others are written first.
LATER_ATTRIBUTES = ("digest", "finished", "advice", "recovered")
ROOMS = {"finished": 32, "advice": 320}  # Room for what is put in at the end: the time, and what would be faster.
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
Contents = dict[str, tuple[np.dtype, tuple[int, ...]]]
TABLES = {  # Tables to which rows are appended: the dtype, and the rows of a chunk.
    "episodes": (EPISODE, 1024),
    "faults": (FAULT, 64),
    "resets": (RESET, 256),
    "throughput/intervals": (INTERVAL, INTERVALS_PER_CHUNK),
    "throughput/limit": (LIMIT, 256),
    "throughput/ranks": (RANK, 0),  # Those of one start: a row for each rank.
}


@dataclass(frozen=True)
class Ending:
    """What is known only at the end of a run, for the file."""

    finished: str
    env_steps: int
    seconds: float
    ranks: Reports
    limit: Sequence[tuple[float, float]]
    complete: bool
    advice: str = ""


@dataclass(frozen=True)
class Schema:
    """What is known about a file before its first step: the attributes of its root group, and the rows of a block."""

    attributes: Mapping[str, object]
    num_rows: int

    @cached_property
    def config(self) -> RolloutConfig:
        return read_config(self.attributes["config"], "the new file")

    def create(self, path: str, swmr_mode: bool = True, is_locked: bool = False) -> h5py.File:
        """Make the file with all its objects, empty; FileExistsError if it exists and is not locked by this process."""
        # `storage.ownership` keeps runs apart, not HDF5's own locks.
        file = h5py.File(path, "w" if is_locked else "x", libver=LIBVER, locking=False)
        file.attrs["format"] = FORMAT
        file.attrs["format_version"] = FORMAT_VERSION
        for name, value in self.attributes.items():
            file.attrs[name] = value
        file.attrs["digest"] = digest_of(file.attrs)
        for name in ROOMS:
            file.attrs[name] = padded(name, "")
        # Numbers that change come before the links to datasets, in the first block of a group's header: see `torn`.
        throughput = file.create_group("throughput").attrs
        throughput["starts"], throughput["env_steps"], throughput["seconds"] = np.int64(1), np.int64(0), np.float64(0)
        if self.config.trajectories:
            file.create_group("trajectories").attrs["num_steps"] = np.int64(0)
        expected = expected_rows(self.attributes, self.config)
        for name, (dtype, shape) in expected.items():
            if name not in LIST:
                self._create_dataset(file, name, dtype, shape)
        if self.config.trajectories and not is_manifest(self.attributes):
            ValueChecks(self.attributes).write(file["trajectories"])
        for name, num_rows in zip(LIST, (256, 64), strict=True):
            file.create_dataset(name, (0,), expected[name][0], maxshape=(None,), chunks=(num_rows,))
        file["chunks"].attrs["datasets"] = json.dumps([name for name in leaf_datasets(file) if name not in LIST])
        if swmr_mode:
            file.swmr_mode = True
        return file

    def _create_dataset(self, file: h5py.File, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        options: dict[str, object] = {"maxshape": (None, *shape), "fletcher32": True}
        if shape:
            options["chunks"] = chunk_shape(self.num_rows, shape, dtype)
            if pays(self.config.compression, dtype, shape[1:]):
                options |= filter_options(self.config.compression, dtype, GZIP_LEVEL)
        else:
            options["chunks"] = (TABLES[name][1] or int(str(self.attributes["num_ranks"])),)
        file.create_dataset(name, (0, *shape), dtype, **options)


def expected_rows(root: Mapping[str, object], config: RolloutConfig) -> Contents:
    """Return for every dataset the dtype and the shape of a row; `root` is the root group's attributes."""
    expected: Contents = {}
    if config.trajectories and not is_manifest(root):  # The columns of a manifest are in its shards.
        for name, leaf in expected_leaves(root).items():
            expected[f"trajectories/{name}"] = leaf.dtype, (config.num_envs, *leaf.shape)
    has = {"episodes": config.trajectories, "resets": is_recording(root)}
    expected |= {name: (dtype, ()) for name, (dtype, _) in TABLES.items() if has.get(name, True)}
    if config.trajectories:
        expected["episodes"] = episode_dtype(agents_in(root)), ()
    return expected | dict(zip(LIST, ((CHUNK, ()), (COMMIT, ())), strict=True))


def expected_leaves(root: Mapping[str, object]) -> dict[str, Leaf]:
    """Return the leaves of the columns below /trajectories, by their paths there."""
    spaces = parsed(root, "spaces", dict)
    names = ["observation", "action", *sorted({"extra", "info"} & spaces.keys())]
    described = {name: tuple(leaf for leaf, *_ in described_leaves(spaces.get(name))) for name in names}
    stored = stored_leaves(described, is_recording(root), agents_in(root))
    return {name: leaf for group in stored.values() for name, leaf in group.items()}


def agents_in(root: Mapping[str, object]) -> tuple[str, ...]:
    """Return the agents of the envs of a file, from its root group's attributes."""
    return described_agents(parsed(root, "spaces", dict).get("observation"))


def episode_dtype(agents: Sequence[str]) -> np.dtype:
    """Return the type of a row of /episodes: with agents it has the return of each, too."""
    fields = [(name, EPISODE[name]) for name in EPISODE.names or ()]
    return np.dtype([*fields, *((RETURN_OF + agent, np.float64) for agent in agents)]) if agents else EPISODE


def check_datasets(datasets: Mapping[str, h5py.HLObject], expected: Contents, compression: str) -> None:
    """Check that these are the datasets of a file; ContentError if one is missing or another one."""
    for name, (dtype, shape) in expected.items():
        if not isinstance(dataset := datasets.get(name), h5py.Dataset):
            raise ContentError(f"there is no {name}")
        got = dataset.dtype, (dataset.shape or ())[1:]
        if got != (dtype, shape):
            raise ContentError(f"{name} should be {dtype} {shape} a row, got {got[0]} {got[1]}")
        if dataset.chunks is None or dataset.chunks[2:] != tuple(max(size, 1) for size in shape[1:]):
            raise ContentError(f"{name} is not cut into chunks of whole rows")
        if dataset.fletcher32 == (name in LIST):  # Others' readers have only those of HDF5.
            raise ContentError(f"{name} has {'' if dataset.fletcher32 else 'no '}checksums")
        _check_compression(name, dataset, compression if name.startswith("trajectories/") else "none")


def _check_compression(name: str, dataset: h5py.Dataset, wanted: str) -> None:
    """Refuse other filters than the configuration says: they would be called with what the file has."""
    expected, got = wanted if pays(wanted, dataset.dtype, dataset.shape[2:]) else "none", compression_of(dataset)
    if expected != got:
        raise ContentError(f"{name} should have the compression {expected}, got {got}")
    if why := why_missing(got):
        raise ContentError(f"{name} is compressed: {why}")


def made_with() -> dict[str, str]:
    """Return what else the data of an env may depend on: versions, and the seed of Python's hashes."""
    return versions() | libraries() | {hash_seed.VARIABLE: hash_seed.in_use()}


def libraries() -> dict[str, str]:
    """Return the versions of h5py and HDF5."""
    return {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}


def is_recording(attributes: Mapping[str, object]) -> bool:
    """Tell from a root group's attributes whether a trainer took the steps of a file, not a run."""
    return "recorded_by" in attributes


def is_manifest(attributes: Mapping[str, object]) -> bool:
    """Tell from a root group's attributes whether the columns of a file are in shards."""
    return "shards" in attributes


def fault_row(env_index: int, step: int, message: str) -> tuple[int, int, bytes]:
    """Return a row of /faults; a message that is too long loses its end."""
    room = FAULT["message"].itemsize
    return env_index, step, message.encode(errors="backslashreplace")[:room].decode(errors="ignore").encode()


def padded(name: str, words: str) -> np.bytes_:
    """Return the value of an attribute of `ROOMS`; words that are too long lose their end."""
    return np.bytes_(words.encode("ascii", "backslashreplace")[: ROOMS[name]].ljust(ROOMS[name]))


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


def leaf_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return the datasets below a group by path, in alphabetical order."""
    datasets: dict[str, h5py.Dataset] = {}
    group.visititems(lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return dict(sorted(datasets.items()))


def is_sparse(dataset: h5py.Dataset) -> bool:
    """Tell whether chunks that have zeros alone are left out of a dataset: few of its rows have values."""
    group, _, name = str(dataset.name)[1:].partition("/")
    return group == "trajectories" and column_of(name).rows is Rows.ENDS


def first_digest(attributes: Mapping[str, object]) -> bytes:
    """Return the digest of an empty list; it belongs to the file with this root group."""
    return hashlib.sha256(str(attributes["digest"]).encode()).digest()


def next_digest(before: bytes, num_steps: int, rows: np.ndarray) -> bytes:
    """Return the digest of a list to which a commit of `num_steps` steps adds rows: a SHA-256."""
    return hashlib.sha256(before + num_steps.to_bytes(8, "little", signed=True) + rows.tobytes()).digest()


def chunk_shape(num_rows: int, row: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """Choose chunks of some steps of a few envs; a block of `num_rows` rows of this shape is a whole number of chunks.

    A reader of one env's episode reads the other envs of its chunks too, so there should be few of them: one, for
    images.  A reader of step after step finds the chunks of all envs in HDF5's cache, unless one step is larger.
    """
    (num_envs, *shape), rows = row, 1
    nbytes = dtype.itemsize * math.prod(shape)  # Of a step of one env.
    while 2 * rows <= num_rows and 2 * rows * num_envs * nbytes <= SPAN_NBYTES:
        rows *= 2
    least = -(-CHUNK_NBYTES // max(rows * nbytes, 1))
    parts = max(num_envs // least, 1)
    return (rows, -(-num_envs // parts), *(max(size, 1) for size in shape))


def rows_per_block(row_nbytes: int, num_steps: int) -> int:
    """Choose a power of two, so that blocks are whole numbers of chunks; bounded in bytes, for images, and in steps."""
    rows = 1
    while rows < min(num_steps, 1024):
        if 2 * rows * row_nbytes > (LARGE_BLOCK_NBYTES if rows < FEW_STEPS else BLOCK_NBYTES):
            break
        rows *= 2
    return rows
