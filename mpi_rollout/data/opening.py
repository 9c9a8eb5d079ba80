"""`mpi_rollout.open`: one file, or several files of one env as one data set."""

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, overload

import numpy as np

from mpi_rollout.core.spaces import describe
from mpi_rollout.data.episodes import Episode
from mpi_rollout.data.reading import EpisodeRows, as_table
from mpi_rollout.data.run_data import RunData
from mpi_rollout.data.transitions import Batch, Transitions
from mpi_rollout.errors import DataError, UsageError

Path = str | os.PathLike[str]


class SeveralRuns:
    """The data of several files, whose envs have the same spaces.

    Episodes and transitions are those of all files, one file after the other.  Columns have steps of the envs of one
    file: they are in `files`.

    Attributes
    ----------
    files
        What `mpi_rollout.open` gives for each file.
    observation_space, action_space
        Of one env of any file.
    """

    def __init__(self, paths: Iterable[str], agent: str | None = None):
        self.files: list[RunData] = []
        for path in paths:
            self.files.append(RunData(path, agent))
            _check_same_spaces(self.files[0], self.files[-1])
        self.observation_space, self.action_space = self.files[0].observation_space, self.files[0].action_space

    def __enter__(self) -> "SeveralRuns":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for data in self.files:
            data.close()

    def refresh(self) -> int:
        """Look how far the runs have come; return the sum of committed steps."""
        for name in ("episodes", "unfinished", "transitions"):
            self.__dict__.pop(name, None)
        return sum(data.refresh() for data in self.files)

    @property
    def paths(self) -> list[str]:
        """The names of the files."""
        return [data.path for data in self.files]

    @property
    def env_id(self) -> str | None:
        """What `--env` was; None where files differ, or a factory has made the envs."""
        return self.files[0].env_id if len({data.env_id for data in self.files}) == 1 else None

    @property
    def env_spec(self) -> str:
        """Gymnasium's EnvSpec in JSON; "" where files differ, or the env has none."""
        return self.files[0].env_spec if len({data.env_spec for data in self.files}) == 1 else ""

    @property
    def is_complete(self) -> bool:
        """Whether all runs have taken all their steps."""
        return all(data.is_complete for data in self.files)

    @cached_property
    def episodes(self) -> np.ndarray:
        """The episodes that have ended, file after file; the column `file` is the index of theirs."""
        return _together([data.episodes for data in self.files])

    @cached_property
    def unfinished(self) -> np.ndarray:
        """The episodes that the end of the data cuts."""
        return _together([data.unfinished for data in self.files])

    @property
    def num_transitions(self) -> int:
        """The number of transitions in all episodes, also in unfinished ones."""
        return sum(data.num_transitions for data in self.files)

    def iter_episodes(self, episodes: EpisodeRows | None = None, **options: Any) -> Iterator[Episode]:
        """Iterate over episodes, one file after the other; see `RunData.iter_episodes`."""
        rows = None if episodes is None else as_table(episodes, self.episodes.dtype)
        return chain.from_iterable(
            [  # All arguments are checked before the first episode is read.
                data.iter_episodes(None if rows is None else rows[rows["file"] == index], file=index, **options)
                for index, data in enumerate(self.files)
            ]
        )

    @cached_property
    def transitions(self) -> Transitions:
        """All transitions of all files; see `RunData.transitions`."""
        return Transitions([part for data in self.files for part in data.transitions.files])

    def sample_transitions(self, size: int, rng: np.random.Generator | int | None = None) -> Batch:
        """Draw transitions at random, each with the same probability; see `RunData.sample_transitions`."""
        return self.transitions.sample(size, rng)

    def __repr__(self) -> str:
        return f"<SeveralRuns: {len(self.files)} files, {len(self.episodes):,} episodes>"


def _check_same_spaces(first: RunData, data: RunData) -> None:
    for name, expected, got in (
        ("observation_space", first.observation_space, data.observation_space),
        ("action_space", first.action_space, data.action_space),
    ):
        if describe(expected) != describe(got):
            raise DataError(
                f"{data.path} has the {name} {got}, {first.path} has {expected}; open files of one env together"
            )


def _together(tables: list[np.ndarray]) -> np.ndarray:
    """Put tables of episodes together, with the index of each one's file."""
    of_one = tables[0].dtype
    fields = [(name, of_one[name]) for name in of_one.names or ()]
    rows = np.zeros(sum(map(len, tables)), np.dtype([*fields, ("file", "i8")]))
    rows[[*(of_one.names or ())]] = np.concatenate(tables)
    rows["file"] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return rows


@overload
def open(path: Path, *, agent: str | None = None) -> RunData: ...


@overload
def open(path: list[Path] | tuple[Path, ...], *, agent: str | None = None) -> SeveralRuns: ...


def open(path: Path | list[Path] | tuple[Path, ...], *, agent: str | None = None) -> RunData | SeveralRuns:
    """Open what a run has written; neither MPI nor the env is needed.

    All tables, the list of chunks and HDF5's index are read and checked.  Columns are read where they are sliced.

    Parameters
    ----------
    path
        A file: complete, recovered, or a `.part`, of which all is there that its run has committed.  Or a list of
        files whose envs have the same spaces: they are one data set.
    agent
        Of envs with several agents, read the data of this one alone: its spaces, columns and episodes.  These are the
        runs of neighbouring steps in which it acts.

    Raises
    ------
    DataError
        The file is missing, damaged, another program's, or has no trajectories.
    UsageError
        The list is empty, or is no list of paths.  There is no such agent, or the file is a recording.

    Examples
    --------
    >>> data = mpi_rollout.open("results/rollout.h5")
    >>> data.rewards[:100, 0]  # of the first env
    >>> for episode in data.iter_episodes(min_return=400):
    ...     episode.observations, episode.actions
    """
    if isinstance(path, str | os.PathLike):
        return RunData(os.fspath(path), agent)
    paths = list(path) if isinstance(path, Iterable) else []
    if not paths or not all(isinstance(part, str | os.PathLike) for part in paths):
        raise UsageError(f"mpi_rollout.open takes the path of a file, or a list of paths; got {path!r:.80}")
    return SeveralRuns([os.fspath(part) for part in paths], agent)
