"""What all exports share: which episodes, as which number, in what order; memory and room; errors of writing.

The number of an episode is its place in /episodes; those that the end of the data has cut come last.  So it depends on
the data alone.  They are read in groups of envs: running episodes are in memory, and images of many envs would not fit.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpi_rollout.data.episodes import Episode
from mpi_rollout.data.opening import SeveralRuns
from mpi_rollout.errors import DataError, StorageError, UsageError
from mpi_rollout.process.host import ANYWAY, format_bytes, is_any_size
from mpi_rollout.storage.sandbox import MEMORY_PER_BYTE, allow_memory
from mpi_rollout.storage.shard_files import size_of
from mpi_rollout.storage.untrusted import Tell

RUNNING_NBYTES = 2**28  # The size of the episodes that are in memory at a time.
COPIES = 3  # Copies of the episodes while they are put together and written.
Options = Mapping[str, Any]  # The options of the command line.


def open_files(paths: Sequence[str], agent: str | None) -> SeveralRuns:
    """Open files as one data set, of one agent if there are several; this process may then have memory for all."""
    allow_memory(MEMORY_PER_BYTE * sum(map(size_of, paths)))
    data = SeveralRuns(paths, agent)
    if agents := data.files[0].agents:
        way_out = f"export each by itself: --agent {agents[0]}"
        raise UsageError(f"{paths[0]} has several agents ({', '.join(agents)}), and the format knows of one; {way_out}")
    return data


def row_nbytes(data: SeveralRuns) -> int:
    """Return the bytes of one transition, as they are exported."""
    return max(file.transition_nbytes for file in data.files)


def exported_rows(data: SeveralRuns) -> np.ndarray:
    """Return the rows of all episodes with transitions, in the order in which they are read.

    They have two columns more than `data.episodes`: `number`, and the `group` that is read in one pass.  This process
    may then have memory for the longest: compressed, it may be small in its file.  DataError if there is none.
    """
    rows = np.concatenate([data.episodes, data.unfinished])
    rows = rows[rows["length"] > 0]
    if not len(rows):
        raise DataError(f"{', '.join(data.paths)}: no episode has a transition; there is nothing to export")
    numbered = np.zeros(len(rows), np.dtype([*rows.dtype.descr, ("number", "i8"), ("group", "i8")]))
    numbered[[*(rows.dtype.names or ())]] = rows[np.argsort(rows["file"], kind="stable")]
    numbered["number"] = np.arange(len(rows))
    longest_nbytes = int(rows["length"].max()) * row_nbytes(data)
    files_nbytes = sum(map(size_of, data.paths))
    allow_memory(MEMORY_PER_BYTE * files_nbytes + COPIES * max(longest_nbytes, RUNNING_NBYTES))
    width = envs_per_group(longest_nbytes)
    numbered["group"] = numbered["file"] * (int(rows["env_index"].max()) + 1) + numbered["env_index"] // width
    return numbered[np.argsort(numbered["group"], kind="stable")]


def envs_per_group(longest_nbytes: int) -> int:
    """Return of how many envs the running episodes are in memory: a power of two, as chunks have it for images."""
    return 1 << max(RUNNING_NBYTES // max(longest_nbytes, 1), 1).bit_length() - 1


def read(tell: Tell, data: SeveralRuns, rows: np.ndarray) -> Iterator[Episode]:
    """Read episodes, one group after the other, with a sign of life for each episode."""
    for group in np.split(rows, np.flatnonzero(np.diff(rows["group"])) + 1):
        for episode in data.iter_episodes(group):
            yield episode
            tell(f"exporting the episodes from step {episode.start:,} on")


def counts_of(rows: np.ndarray) -> dict[str, int]:
    """Count what is exported, for who exports."""
    unfinished = int(np.count_nonzero(~(rows["terminated"] | rows["truncated"])))
    return {"episodes": len(rows), "steps": int(rows["length"].sum()), "unfinished": unfinished}


def check_room(folder: str, nbytes: int, compression: str) -> None:
    """Raise StorageError if a file system has not as much room; the size of a compressed file is not known before."""
    free = shutil.disk_usage(folder).free
    if compression == "none" and nbytes > free and not is_any_size():
        raise StorageError(
            f"the export takes about {format_bytes(nbytes)}, and {os.path.abspath(folder)} has {format_bytes(free)} "
            f"free; use --compression gzip, another place, {ANYWAY}"
        )
