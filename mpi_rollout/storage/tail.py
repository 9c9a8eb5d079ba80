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

from mpi_rollout.config import DATA_OPTIONS, RolloutConfig
from mpi_rollout.errors import DataError, NotContinuedError
from mpi_rollout.storage.checked_file import CheckedFile
from mpi_rollout.storage.episodes import EpisodeTable, StoredResults, make_table, stored_results
from mpi_rollout.storage.file_chunks import FileChunks
from mpi_rollout.storage.schema import CHUNK, FORMAT_VERSION, LIST, Schema
from mpi_rollout.storage.torn import is_marked
from mpi_rollout.storage.values import ValueChecks

# Attributes of the root group that are of the start which made the file.  Of its configuration these options matter.
MAY_DIFFER = {"config", "hosts", "started"}
MUST_NOT_DIFFER = *DATA_OPTIONS, "compression"


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
    """What follows is appended behind this; `digest` is that of the last commit."""

    datasets: Mapping[str, ChunkTail]
    digest: bytes
    values: ValueChecks
    episodes: EpisodeTable


def why_copied(source: CheckedFile, schema: Schema, num_steps: int) -> str:
    """Return why a run with this schema cannot go on in a file after so many steps, but in a copy; "" if it can."""
    if source.root["format_version"] != FORMAT_VERSION or not source.stored.has_list:
        return "it was written by an older version"
    for name, value in schema.attributes.items():
        if name not in MAY_DIFFER and str(source.root.get(name)) != str(value):
            return f"its attribute {name} is another one"
    for name in MUST_NOT_DIFFER:
        if getattr(source.config, name) != getattr(schema.config, name):
            return f"its {name} is another one"
    if source.is_sealed or num_steps != source.num_committed or is_marked(source.path):
        return "its writer was killed, or it is complete, or goes on behind these steps"
    expected = source.counting_rows()
    for name, dataset in source.datasets.items():
        if dataset.maxshape[0] is not None or (dataset.ndim > 1 and schema.num_rows % dataset.chunks[0]):
            return f"{name} has chunks of another size"
        if name not in LIST and (len(dataset) != expected[name] or source.stored.chunks(name).disagreement()):
            return f"{name} has more than was committed"
    commit = source.file["commits"][-1]
    is_last = commit["num_steps"] == source.num_committed and commit["num_chunks"] == len(source.file["chunks"])
    return "" if is_last else "its list of chunks has more than was committed"


def read_tail(source: CheckedFile) -> Tail:
    """Read and check the end of a file that `why_copied` has nothing against."""
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
    return Tail(tails, source.file["commits"][-1]["digest"].tobytes(), values, table)


def has_true(source: CheckedFile, mask: str) -> bool:
    """Tell whether a mask has a true value; what is read ends at the first one."""
    columns = [f"trajectories/{name}" for name in (mask, f"final_{mask}") if source.has(name)]
    chunks = [(source.stored.chunks(name), source.counting_rows()[name]) for name in columns]
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


def not_continued(error: DataError, path: str) -> NotContinuedError:
    """Return the error for a file in which data of an earlier start are damaged."""
    if isinstance(error, NotContinuedError):
        return error
    recover = f"`python -m mpi_rollout recover {quote(path)}`"
    return NotContinuedError(
        f"{error}; {path} cannot be continued: {recover} makes a file of what is whole, or move it away to begin anew"
    )
