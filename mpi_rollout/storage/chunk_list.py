"""Where the chunks of a file are: what its own list says of the last commit, and what HDF5's index says.

`chunks.ChunkList` writes the list.
"""

import h5py
import numpy as np

from mpi_rollout.errors import ContentError
from mpi_rollout.storage.schema import CHUNK, first_digest, next_digest
from mpi_rollout.storage.untrusted import attributes_of, is_of_reading, parsed, table_of


def listed_chunks(file: h5py.File, num_steps: int, is_sealed: bool, is_at_least: bool = False) -> dict[str, np.ndarray]:
    """Return the chunks listed by the last commit of `num_steps` steps, by dataset; ContentError if damaged.

    With `is_at_least`, a commit of more steps will do, of those before the first one that is damaged.
    """
    names = parsed(attributes_of(file["chunks"]), "datasets", list)
    chunks, commits = table_of(file, "chunks"), table_of(file, "commits")
    whole = commits[: _num_whole(file, chunks, commits)]
    considered = whole if is_at_least else commits
    counts = considered["num_steps"] >= num_steps if is_at_least else considered["num_steps"] == num_steps
    counting = np.flatnonzero(counts & (considered["num_chunks"] <= len(chunks)))
    if not len(counting):
        if not num_steps and not is_sealed:
            return {}
        what = f"its list of chunks has no commit of {num_steps:,} steps"
        most = int(whole["num_steps"].max(initial=0))
        raise ContentError(what + (f"; recover the first {most:,} with --num-steps {most}" if most else ""))
    # A writer, killed or at work, may have left commits whose chunks are not listed yet.
    others = commits["num_chunks"][len(whole) :]
    if len(others) and not is_at_least and (is_sealed or (others <= len(chunks)).any()):
        raise ContentError("its list of chunks is not what was written: the digest does not fit")
    chunks = chunks[: considered["num_chunks"][counting[-1]]]
    is_possible = (chunks["row"] >= 0) & (chunks["env"] >= 0) & (chunks["num_checked"] >= 0)
    is_possible &= chunks["num_checked"] <= chunks["nbytes"]
    if not is_possible.all():
        raise ContentError(f"its list of chunks is damaged in row {is_possible.argmin():,}")
    return {str(name): chunks[chunks["dataset"] == number] for number, name in enumerate(names)}


def _num_whole(file: h5py.File, chunks: np.ndarray, commits: np.ndarray) -> int:
    """Return the number of commits that are as they were written, before the first one that is not."""
    digest, start = first_digest(file.attrs), 0
    for number, commit in enumerate(commits):
        stop = int(commit["num_chunks"])
        digest = next_digest(digest, int(commit["num_steps"]), chunks[start:stop])
        if not start <= stop <= len(chunks) or digest != commit["digest"].tobytes():
            return number
        start = stop
    return len(commits)


def indexed_chunks(dataset: h5py.Dataset, is_needed: bool) -> np.ndarray:
    """Return where HDF5's index has the chunks of a dataset; ContentError if it is needed and cannot be read."""
    found: list[tuple[int, ...]] = []

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        row, env = (*chunk.chunk_offset, 0)[:2]
        found.append((0, row, env, chunk.byte_offset, chunk.size, chunk.filter_mask, chunk.size, 0))

    try:
        dataset.id.chunk_iter(note)
    except Exception as error:
        if not is_of_reading(error):
            raise
        if is_needed:
            raise ContentError(f"{str(dataset.name)[1:]}: HDF5's index of its chunks cannot be read") from error
    return np.array(found, CHUNK)
