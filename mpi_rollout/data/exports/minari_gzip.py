"""A compressed data set: every rank writes a file of its episodes, and the root copies them, compressed as they are."""

import os
from contextlib import closing
from typing import Any

import numpy as np

from mpi_rollout.data.exports.episode_groups import EpisodeGroups
from mpi_rollout.data.exports.minari_columns import attributes_of, columns_of
from mpi_rollout.data.exports.selection import groups_of, row_nbytes, share_of
from mpi_rollout.storage.objects import Tell

PIECE = 20  # Episodes between two signs of life.


def write_share(tell: Tell, data: Any, rows: np.ndarray, main: str, share: int, num_shares: int) -> None:
    """Write the episodes of one of several shares; the first one's file becomes the whole."""
    with closing(EpisodeGroups(tell, part_path(main, share))) as groups, np.errstate(all="ignore"):
        for group in groups_of(share_of(rows, share, num_shares, row_nbytes(data))):
            for episode in data.iter_episodes(group):
                columns = columns_of(episode)
                groups.write(columns, attributes_of(episode.row, columns["rewards"]))
                tell(f"exporting the episodes from step {episode.start:,} on")


def join(tell: Tell, data: Any, rows: np.ndarray, main: str, num_shares: int) -> None:
    """Put the shares together."""
    if num_shares == 1:
        return
    with closing(EpisodeGroups(tell, main, is_new=False)) as groups:
        for share in range(1, num_shares):
            numbers = share_of(rows, share, num_shares, row_nbytes(data))["number"]
            for first in range(0, len(numbers), PIECE):
                tell(f"copying what rank {share} has written")
                groups.take(part_path(main, share), numbers[first : first + PIECE])
            os.unlink(part_path(main, share))


def part_path(main: str, share: int) -> str:
    """Return the file of a share."""
    return os.path.join(os.path.dirname(main), f"part-{share}.hdf5") if share else main
