"""A data set without compression: every rank writes its episodes into the one file, each where it belongs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpi_rollout.data.exports.episode_bytes import START, EpisodeBytes, Template, finish
from mpi_rollout.data.exports.minari_columns import attributes_of, columns_of
from mpi_rollout.data.exports.selection import groups_of, row_nbytes, share_of
from mpi_rollout.errors import RolloutError
from mpi_rollout.storage.objects import Tell

ALIGNMENT = 2**16  # Of shares: no two hosts write into one page of the file.


class Layout:
    """Where each episode of a data set lies.

    Attributes
    ----------
    templates
        By file, and by whether an episode has a seed.
    starts
        The address of each share, and last the end of the episodes.
    """

    def __init__(self, data: Any, rows: np.ndarray, num_shares: int):
        self._has_files = "file" in (rows.dtype.names or ())
        self.templates = {key: template for file in self._samples(rows) for key, template in _templates(data, file)}
        sizes = np.zeros(len(rows), np.int64)
        for (file, has_seed), template in self.templates.items():
            chosen = ((rows["file"] == file) if self._has_files else True) & ((rows["seed"] >= 0) == has_seed)
            sizes[chosen] = template.nbytes(rows["length"][chosen])
        ends = np.cumsum(sizes)
        counts = [len(share_of(rows, share, num_shares, row_nbytes(data))) for share in range(num_shares)]
        nbytes = np.diff(np.append(0, ends)[np.cumsum([0, *counts])])
        self.starts = [START]
        for each in nbytes.tolist():
            end = self.starts[-1] + each
            self.starts.append(end + -end % ALIGNMENT if num_shares > 1 else end)
        self.ends = [start + each for start, each in zip(self.starts, nbytes.tolist(), strict=False)]

    def _samples(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield for each file the row of its shortest episode."""
        for file in np.unique(rows["file"]) if self._has_files else [0]:
            own = rows[rows["file"] == file] if self._has_files else rows
            yield own[[np.argmin(own["length"])]]

    def template(self, episode: Any) -> Template:
        """Return the template of an episode."""
        return self.templates[episode.file, episode.seed >= 0]


def _templates(data: Any, rows: np.ndarray) -> Iterator[tuple[tuple[int, bool], Template]]:
    for episode in data.iter_episodes(rows):
        for has_seed in (True, False):
            yield (episode.file, has_seed), Template(columns_of(episode), episode.length, has_seed)


def write_share(tell: Tell, data: Any, rows: np.ndarray, main: str, share: int, num_shares: int) -> None:
    """Write the episodes of one of several shares into the file, and their addresses beside it."""
    layout = Layout(data, rows, num_shares)
    own = share_of(rows, share, num_shares, row_nbytes(data))
    with _opened(main) as descriptor, np.errstate(all="ignore"):
        written = EpisodeBytes(descriptor, layout.starts[share])
        for group in groups_of(own):
            for episode in data.iter_episodes(group):
                members = columns_of(episode)
                written.append(layout.template(episode), members, attributes_of(episode.row, members["rewards"]))
                tell(f"exporting the episodes from step {episode.start:,} on")
        written.flush()
        if written.end != layout.ends[share]:
            raise RolloutError(f"the episodes of share {share} end at {written.end}, expected {layout.ends[share]}")
    none = np.zeros(0, np.int64)  # There may be more ranks than episodes.
    columns = [np.concatenate([none, *parts]) for parts in (written.numbers, written.addresses)]
    np.save(addresses_path(main, share), np.stack(columns))


def join(tell: Tell, data: Any, rows: np.ndarray, main: str, num_shares: int) -> None:
    """Make the root group of a file that all shares have been written to."""
    tell("writing where the episodes are")
    paths = [addresses_path(main, share) for share in range(num_shares)]
    numbers, addresses = np.concatenate([np.load(path, allow_pickle=False) for path in paths], axis=1)
    with _opened(main) as descriptor:
        finish(descriptor, numbers, addresses, Layout(data, rows, num_shares).starts[-1])
    for path in paths:
        os.unlink(path)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Open a file for writing, which another rank may have made."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def addresses_path(main: str, share: int) -> str:
    """Return the file in which a rank says where its episodes are."""
    return os.path.join(os.path.dirname(main), f"addresses-{share}.npy")
