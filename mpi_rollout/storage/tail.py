"""The end of what a file has: all that must be known of it to append to it in place.

A start of a run goes on in the file that the one before has left, if that is just as its last commit left it.  Nothing
that is committed is then written again, but the last chunks that are not full, in place and with the same bytes.  So a
kill at any write finds the file as a kill in the first start would.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from shlex import quote

import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError, ForeignFileError, NewerFormatError, NotContinuedError
from mpi_rollout.storage.checked_file import CheckedFile
from mpi_rollout.storage.episodes import EpisodeTable, StoredResults, make_table, stored_results
from mpi_rollout.storage.file_chunks import FileChunks
from mpi_rollout.storage.schema import CHUNK, LIST, Schema
from mpi_rollout.storage.torn import is_marked
from mpi_rollout.storage.values import ValueChecks

# Attributes of the root group that are of the start which made the file.  Of the configuration `same_run` has compared
# what decides on the data.
MAY_DIFFER = {"config", "hosts", "num_ranks", "seed_check", "started"}


@dataclass(frozen=True)
class ChunkTail:
    """The last rows of a dataset: how many it has, those of the last chunk if that is not full, and where this is.

    `chunks` are what HDF5's index has of it, as rows of the table /chunks: one for each group of envs.
    """

    num_rows: int
    rows: np.ndarray
    chunks: np.ndarray


@dataclass(frozen=True)
class Tail:
    """What follows is appended behind this; `digest` is that of the last commit, `starts` those before this one."""

    datasets: Mapping[str, ChunkTail]
    digest: bytes
    values: ValueChecks
    episodes: EpisodeTable
    starts: int


def can_go_on(source: CheckedFile, schema: Schema, num_steps: int) -> bool:
    """Tell whether a run with this schema goes on in a file after so many steps, and not in a copy.

    The file is of this run, has chunks of the same sizes, and all that was committed and no more.
    """
    commit, expected, attributes = source.file["commits"][-1], source.counting_rows(), schema.attributes
    listed = [(name, dataset) for name, dataset in source.datasets.items() if name not in LIST]
    return bool(
        all(str(source.root.get(name)) == str(attributes[name]) for name in attributes.keys() - MAY_DIFFER)
        and source.config.compression == schema.config.compression
        and not (source.is_sealed or is_marked(source.path))
        and num_steps == source.num_committed == commit["num_steps"]
        and commit["num_chunks"] == len(source.file["chunks"])
        and all(dataset.maxshape[0] is None for dataset in source.datasets.values())
        and all(dataset.ndim == 1 or schema.num_rows % dataset.chunks[0] == 0 for _, dataset in listed)
        and all(len(dataset) == expected[name] for name, dataset in listed)
        and not any(source.stored.chunks(name).disagreement() for name, _ in listed)
    )


def read_tail(source: CheckedFile) -> Tail:
    """Read and check the end of a file that a run `can_go_on` with."""
    tails = {}
    for name, num_rows in source.counting_rows().items():
        chunks = source.stored.chunks(name)
        last = slice(num_rows - num_rows % chunks.rows, num_rows)
        tails[name] = ChunkTail(num_rows, chunks.read(last.start, last.stop), chunks.indexed(last))
    for name in LIST:
        table = source.file[name]
        num_rows = len(table)
        tails[name] = ChunkTail(num_rows, table[num_rows - num_rows % table.chunks[0] :], np.zeros(0, CHUNK))
    table = running_table(source.config, source.root, source.stored, source.committed_episodes(), source.num_steps)
    values, columns = ValueChecks(source.root), source.trajectories()
    values.go_on({name: dict(columns[name].attrs) for name in values.of}, partial(has_true, source))
    return Tail(tails, source.file["commits"][-1]["digest"].tobytes(), values, table, source.starts)


def has_true(source: CheckedFile, mask: str) -> bool:
    """Tell whether a mask has a true value; what is read ends at the first one."""
    columns = source.datasets.keys() & {f"trajectories/{mask}", f"trajectories/final_{mask}"}
    chunks = [(source.stored.chunks(name), source.counting_rows()[name]) for name in sorted(columns)]
    starts = ((column, row, num_rows) for column, num_rows in chunks for row in range(0, num_rows, column.rows))
    return any(column.read(row, min(row + column.rows, num_rows)).any() for column, row, num_rows in starts)


def running_table(
    config: RolloutConfig,
    attributes: Mapping[str, object],
    stored: FileChunks,
    rows: np.ndarray,
    num_steps: int,
    resets: np.ndarray | None = None,
) -> EpisodeTable:
    """Make the table of a run after its first steps, of which `rows` are all episodes that have ended.

    What is under way follows from the steps behind the last ends; in a file with /resets, from all steps.
    """
    table = make_table(config, attributes, resets=resets)
    begin = np.zeros(config.num_envs, np.int64) if resets is not None else table.skip(rows)
    for results in stored_results(stored, attributes, num_steps, first=int(begin.min())):
        is_new = results.start + np.arange(len(results.rewards))[:, None] >= begin
        ends = results.terminations & is_new, results.truncations & is_new
        rewards, *of_agents = (np.where(is_new, own, 0.0) for own in (results.rewards, *results.agent_rewards))
        table.add(StoredResults(results.start, rewards, *ends, of_agents), 0, len(is_new))
    table.take(num_steps)  # Those of resets, which are in the file.
    return table


def not_continued(error: DataError, path: str) -> DataError:
    """Return the error for a file in which data of an earlier start are damaged, or cannot be read here."""
    if isinstance(error, NotContinuedError | NewerFormatError):
        return error
    if isinstance(error, ForeignFileError):
        return NotContinuedError(
            f"{error}; {path} cannot be continued: recover refuses it too; move it away to begin anew, or use another "
            "--out"
        )
    recover = f"`python -m mpi_rollout recover {quote(path)}`"
    return NotContinuedError(
        f"{error}; {path} cannot be continued: {recover} makes a file of what is whole, or move it away to begin anew"
    )
