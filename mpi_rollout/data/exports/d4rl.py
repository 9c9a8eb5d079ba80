"""D4RL's files: all transitions one after the other, in flat arrays.

`timeouts` says where an episode was cut, also by the end of the data, and `next_observations` has every last one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import h5py
import numpy as np

from mpi_rollout.core.spaces import Tree
from mpi_rollout.data.exports.minari import extras_name
from mpi_rollout.data.exports.minari_metadata import name_of_env, policies_of
from mpi_rollout.data.exports.selection import (
    allow_longest,
    check_room,
    exported_rows,
    groups_of,
    open_files,
    row_nbytes,
    writing,
)
from mpi_rollout.errors import DataError
from mpi_rollout.storage.filters import GZIP_LEVEL
from mpi_rollout.storage.untrusted import Tell

CHUNK_NBYTES = 2**20
BLOCK_NBYTES = 2**24  # Of columns, before they are written.
ARRAY_NBYTES = 2**8  # What an array takes besides its data: short episodes have little else.
LOG_PROB = "log_prob"


def export(tell: Tell, path: str, files: Sequence[str], out: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write a file, in a child process (see `storage.sandbox`); return what there is to say about it."""
    with open_files(files) as data:
        check_same_columns(getattr(data, "files", [data]))
        tell("reading the list of its episodes")
        rows = exported_rows(data)
        allow_longest(data, rows)
        num_steps = int(rows["length"].sum())
        check_room(os.path.dirname(out), 2 * num_steps * row_nbytes(data), options["compression"])
        num_unknown = 0
        with writing(out), h5py.File(out, "x", locking=False) as file:
            flat = Flat(tell, file, num_steps, options["compression"], options["float32"])
            for group in groups_of(rows):
                for episode in data.iter_episodes(group):
                    tell(f"exporting the episodes from step {episode.start:,} on")
                    flat.append(columns_of(episode))
                    num_unknown += not episode.knows_final
            flat.flush()
            _describe(file, data, options)
    unfinished = int((~rows["terminated"] & ~rows["truncated"]).sum())
    counts = {"episodes": len(rows), "steps": num_steps, "unfinished": unfinished, "unknown": num_unknown}
    return {**counts, "nbytes": os.path.getsize(out), "is_flat": "observations" in flat.names}


def check_same_columns(files: Sequence[Any]) -> None:
    """Raise DataError if several files have other infos, or the policies gave other extras: all rows have the same."""
    groups = "infos", "extras", "further"
    first, *others = (dict(chain(*(_named(name, getattr(file, name)) for name in groups))) for file in files)
    kinds = {name: (column.dtype, column.shape[2:]) for name, column in first.items()}
    for file, columns in zip(files[1:], others, strict=True):
        differing = kinds.items() ^ {name: (column.dtype, column.shape[2:]) for name, column in columns.items()}.items()
        if differing:
            name = min((name for name, _ in differing), key=lambda name: ("/_" in name, name))  # No mask.
            raise DataError(f"{files[0].path} and {file.path} do not have the same {name}; export each by itself")


class Flat:
    """Arrays of a known number of rows, to which rows are appended.

    Attributes
    ----------
    names
        The paths of the datasets.
    """

    def __init__(self, tell: Tell, file: h5py.File, num_rows: int, compression: str, float32: bool):
        self._tell, self._file, self._num_rows, self._float32 = tell, file, num_rows, float32
        self._options: dict[str, Any] = {}
        if compression == "gzip":
            self._options = {"compression": "gzip", "compression_opts": GZIP_LEVEL, "shuffle": True}
        self._waiting: list[dict[str, np.ndarray]] = []
        self._nbytes = self._num_written = 0
        self.names: list[str] = []

    def append(self, columns: Mapping[str, np.ndarray]) -> None:
        """Take rows; they are copied, or written at once if they are many."""
        nbytes = sum(array.nbytes + ARRAY_NBYTES for array in columns.values())
        if not (waits := nbytes <= BLOCK_NBYTES):
            self.flush()
        self._waiting.append({name: self._converted(array, waits) for name, array in columns.items()})
        self._nbytes += nbytes
        if self._nbytes > BLOCK_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        self.names = self.names or [self._created(name, array) for name, array in self._waiting[0].items()]
        num_rows = sum(len(columns["rewards"]) for columns in self._waiting)
        for name in self.names:
            parts = [columns[name] for columns in self._waiting]
            rows = np.concatenate(parts) if len(parts) > 1 else parts[0]
            self._write(self._file[name], rows)
        self._num_written += num_rows
        self._waiting, self._nbytes = [], 0

    def _write(self, dataset: h5py.Dataset, rows: np.ndarray) -> None:
        """Write rows in pieces: to compress many takes minutes."""
        per_piece = max(BLOCK_NBYTES // max(rows[:1].nbytes, 1), 1)
        for first in range(0, len(rows), per_piece):
            piece = rows[first : first + per_piece]
            place = self._num_written + first
            dataset[place : place + len(piece)] = piece
            self._tell(f"writing {dataset.name[1:]} from row {place:,} on")

    def _converted(self, array: np.ndarray, copies: bool) -> np.ndarray:
        is_other_float = self._float32 and array.dtype.kind == "f"
        with np.errstate(over="ignore"):  # Larger numbers become infinity.
            return array.astype(np.float32 if is_other_float else array.dtype, copy=copies)

    def _created(self, name: str, array: np.ndarray) -> str:
        shape = (self._num_rows, *array.shape[1:])
        rows = min(max(CHUNK_NBYTES // max(array[0].nbytes, 1), 1), self._num_rows)
        options = {"chunks": (rows, *array.shape[1:]), **self._options} if self._options and array[0].size else {}
        self._file.create_dataset(name, shape, array.dtype, **options)
        return name


def columns_of(episode: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an episode by their paths in the file, (length, ...) each."""
    observations = dict(_named("observations", episode.observations))
    columns = {name: array[:-1] for name, array in observations.items()}
    columns |= dict(_named("actions", episode.actions))
    columns |= {"rewards": episode.rewards, "terminals": episode.terminations}
    columns["timeouts"] = episode.truncations.copy()
    columns["timeouts"][-1] |= not (episode.terminated or episode.truncated)
    columns |= {f"next_{name}": array[1:] for name, array in observations.items()}
    infos = dict(_named("infos", episode.infos))
    extras = dict(_named("infos", episode.extras))
    if f"infos/{LOG_PROB}" in extras:
        extras["infos/action_log_probs"] = extras.pop(f"infos/{LOG_PROB}")
    for name in infos.keys() & extras.keys():  # The env and the policy give something of one name.
        extras[name.replace("infos", f"infos/{extras_name(episode.infos)}", 1)] = extras.pop(name)
    columns |= {f"infos/{name}": array for name, array in episode.further.items()}
    return columns | extras | {name: array[: episode.length] for name, array in infos.items()}


def _named(path: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a tree with their paths, as the run's file names them."""
    if not isinstance(tree, dict | tuple):
        yield path, tree
        return
    named = tree.items() if isinstance(tree, dict) else ((f"_index_{i}", part) for i, part in enumerate(tree))
    for key, part in named:
        yield from _named(f"{path}/{key}", part)


def _describe(file: h5py.File, data: Any, options: Mapping[str, Any]) -> None:
    files = getattr(data, "files", [data])
    file["metadata/algorithm"] = options["algorithm_name"] or policies_of(files)
    file["metadata/env"] = name_of_env(files[0])
