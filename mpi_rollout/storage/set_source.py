"""A set of shards as the one file that is made of it."""

import json
import os
from collections.abc import Sequence

import numpy as np

from mpi_rollout.storage.checked_file import CheckedFile
from mpi_rollout.storage.schema import INTERVAL, LATER_ATTRIBUTES, Schema
from mpi_rollout.storage.set_check import wrong_values_of
from mpi_rollout.storage.stored_run import StoredRun

OF_SET = "run", "shards"  # Attributes and options that the file of no set has.
OPTIONS_OF_SET = "storage", "shards_per_node"


class SetSource:
    """What is asked of a `CheckedFile` by who reads all of it, of a set.

    Attributes
    ----------
    schema
        Of the new file, which belongs to no set.
    """

    def __init__(self, manifest: CheckedFile, stored: StoredRun, num_steps: int):
        self._stored, self.stored, self.num_steps, self.num_committed = stored, self, num_steps, stored.num_steps
        self.root, self.is_complete, self.throughput = manifest.root, manifest.is_complete, manifest.throughput
        self._manifest, self.tell, self.datasets = manifest, manifest.tell, manifest.datasets
        kept = {name: value for name, value in self.root.items() if name not in (*OF_SET, *LATER_ATTRIBUTES)}
        options = json.loads(str(self.root["config"]))
        kept["config"] = json.dumps({name: value for name, value in options.items() if name not in OPTIONS_OF_SET})
        self.schema = Schema(kept, max(shape[0] for shape in stored.chunks.values()))
        self.config = self.schema.config

    def table(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return a table of the manifest; before the set is complete the shards know the throughput."""
        if name == "throughput/intervals" and not self.is_complete:
            return merged_intervals([file.intervals for file, _ in self._stored.parts if len(file.intervals)])
        return self._manifest.table(name, dtype)

    def has(self, name: str) -> bool:
        """Tell whether the shards have a column."""
        return name in self._stored.leaves

    def faults(self) -> np.ndarray:
        """Return the rows of /faults of the steps that count."""
        return np.asarray(self._stored.faults[self._stored.faults["step"] < self.num_steps])

    def files(self) -> list[dict[str, str | int]]:
        """Return the name, the size and the committed steps of each shard, as JSON can hold them."""
        return [
            {
                "file": file.path,
                "num_envs": len(envs),
                "num_steps": file.num_committed,
                "nbytes": os.path.getsize(file.locate()),
            }
            for file, envs in self._stored.parts
        ]

    def committed_episodes(self) -> np.ndarray:
        """Return the rows of /episodes that lie in the steps that all shards have."""
        return self._stored.episodes

    def columns(self) -> dict[str, dict[str, object]]:
        """Return the shape and the dtype of each column, as JSON can hold them."""
        num_envs = self.config.num_envs
        return {
            name: {"shape": [self._stored.num_rows(name), num_envs, *leaf.shape], "dtype": str(leaf.dtype)}
            for name, leaf in self._stored.leaves.items()
        }

    def wrong_values(self) -> list[dict[str, str | int]]:
        """Return the wrong values that the columns' attributes record."""
        return wrong_values_of(self._stored)

    def resets(self) -> None:
        """Return None: a run has taken the steps."""

    def chunks(self, name: str) -> "SetColumn":
        """Return a column by its path."""
        return SetColumn(self._stored, name.removeprefix("trajectories/"))


def merged_intervals(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Put the throughput of teams in their last start together: at each time, what each of them noted last."""
    begins = [np.flatnonzero(np.diff(rows["time"], prepend=np.inf) < 0)[-1] for rows in tables]
    last = [rows[begin:] for rows, begin in zip(tables, begins, strict=True)]
    times = np.unique([time for rows in last for time in rows["time"]])
    merged = np.zeros(len(times), INTERVAL)
    merged["time"] = times
    for rows in last:
        places = np.searchsorted(rows["time"], times, side="right")
        for name in ("env_steps", "env_steps_per_s"):
            merged[name] += np.append(np.zeros(1, rows[name].dtype), rows[name])[places]
    return merged


class SetColumn:
    """A column of a set, read as `ChunkReader` reads one of a file."""

    def __init__(self, stored: StoredRun, name: str):
        self._stored, self._name, self.rows = stored, name, stored.chunks[name][0]
        self.shape = stored.num_rows(name), stored.config.num_envs

    def read(self, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        """Read rows `start` to `stop` - 1, into an array if one is given; DataError if a chunk is damaged."""
        return self._stored.read(self._name, slice(start, stop), slice(0, self.shape[1]), into)
