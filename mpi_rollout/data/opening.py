"""`mpi_rollout.open`."""

import os
from collections.abc import Sequence

from mpi_rollout.data.rollout import Rollout
from mpi_rollout.errors import UsageError

Path = str | os.PathLike[str]


def open(path: Path | Sequence[Path]) -> Rollout:
    """Open what a run has written; neither MPI nor the env is needed.

    Nothing is read but attributes and the table of episodes; columns are read where they are sliced.

    Parameters
    ----------
    path
        A file: complete, recovered, or a `.part`, of which all is there that its run has committed.

    Raises
    ------
    DataError
        The file is missing, damaged, another program's, or has no trajectories.
    UsageError
        There is no file in the list.

    Examples
    --------
    >>> data = mpi_rollout.open("results/rollout.h5")
    >>> data.rewards[:100, 0]  # of the first env
    >>> for episode in data.iter_episodes(min_return=400):
    ...     episode.observations, episode.actions
    """
    if isinstance(path, str | os.PathLike):
        return Rollout(os.fspath(path))
    raise UsageError("one file")
