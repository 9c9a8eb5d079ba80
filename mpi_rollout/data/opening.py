"""`mpi_rollout.open`."""

import os
from collections.abc import Iterable
from typing import overload

from mpi_rollout.data.rollout import Rollout
from mpi_rollout.data.several import Rollouts
from mpi_rollout.errors import UsageError

Path = str | os.PathLike[str]


@overload
def open(path: Path) -> Rollout: ...


@overload
def open(path: list[Path] | tuple[Path, ...]) -> Rollouts: ...


@overload
def open(path: Path | list[str]) -> Rollout | Rollouts: ...


def open(path: Path | list[Path] | list[str] | tuple[Path, ...]) -> Rollout | Rollouts:
    """Open what a run has written; neither MPI nor the env is needed.

    All tables, the list of chunks and HDF5's index are read and checked.  Columns are read where they are sliced.

    Parameters
    ----------
    path
        A file: complete, recovered, or a `.part`, of which all is there that its run has committed.  Or a list of
        files whose envs have the same spaces: they are one data set.

    Raises
    ------
    DataError
        The file is missing, damaged, another program's, or has no trajectories.
    UsageError
        The list is empty, or is no list of paths.

    Examples
    --------
    >>> data = mpi_rollout.open("results/rollout.h5")
    >>> data.rewards[:100, 0]  # of the first env
    >>> for episode in data.iter_episodes(min_return=400):
    ...     episode.observations, episode.actions
    """
    if isinstance(path, str | os.PathLike):
        return Rollout(os.fspath(path))
    paths = list(path) if isinstance(path, Iterable) else []
    if not paths or not all(isinstance(part, str | os.PathLike) for part in paths):
        raise UsageError(f"mpi_rollout.open takes the path of a file, or a list of paths; got {path!r:.80}")
    return Rollouts([os.fspath(part) for part in paths])
