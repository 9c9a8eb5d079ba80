"""Several files of one env, read as one data set."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Space, describe
from mpi_rollout.data.episodes import Episode, as_table
from mpi_rollout.data.rollout import Rollout
from mpi_rollout.data.transitions import Batch, Transitions
from mpi_rollout.errors import DataError
from mpi_rollout.storage.schema import EPISODE

SEVERAL = np.dtype([*((name, EPISODE[name]) for name in EPISODE.names or ()), ("file", "i8")])


class Rollouts:
    """The data of several files, whose envs have the same spaces.

    Episodes and transitions are those of all files, one file after the other.  Columns have steps of the envs of one
    file: they are in `files`.

    Attributes
    ----------
    files
        What `mpi_rollout.open` gives for each file.
    """

    def __init__(self, paths: Iterable[str]):
        self.files: list[Rollout] = []
        for path in paths:
            self.files.append(Rollout(path))
            self._check(self.files[-1])

    def _check(self, data: Rollout) -> None:
        first = self.files[0]
        for name in ("observation_space", "action_space"):
            expected, got = getattr(first, name), getattr(data, name)
            if describe(expected) != describe(got):
                raise DataError(
                    f"{data.path} has the {name} {got}, {first.path} has {expected}; open files of one env together"
                )

    def __enter__(self) -> "Rollouts":
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
    def observation_space(self) -> Space:
        """Of one env of any file."""
        return self.files[0].observation_space

    @property
    def action_space(self) -> Space:
        """Of one env of any file."""
        return self.files[0].action_space

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

    def iter_episodes(self, episodes: Any = None, *, unfinished: bool = False, **options: Any) -> Iterator[Episode]:
        """Iterate over episodes, one file after the other; see `Rollout.iter_episodes`."""
        rows = None if episodes is None else as_table(episodes, SEVERAL)
        parts = []
        for index, data in enumerate(self.files):
            own = None if rows is None else rows[rows["file"] == index]
            parts.append(data.iter_episodes(own, unfinished=unfinished, file=index, **options))
        return (episode for part in parts for episode in part)

    @cached_property
    def transitions(self) -> Transitions:
        """All transitions of all files; see `Rollout.transitions`."""
        return Transitions([part for data in self.files for part in data.transitions.files])

    def sample_transitions(self, size: int, rng: np.random.Generator | int | None = None) -> Batch:
        """Draw transitions at random, each with the same probability; see `Rollout.sample_transitions`."""
        return self.transitions.sample(size, rng)

    def __repr__(self) -> str:
        return f"<Rollouts: {len(self.files)} files, {len(self.episodes):,} episodes>"


def _together(tables: list[np.ndarray]) -> np.ndarray:
    """Put tables of episodes together, with the index of each one's file."""
    rows = np.zeros(sum(map(len, tables)), SEVERAL)
    for name in EPISODE.names or ():
        rows[name] = np.concatenate([table[name] for table in tables])
    rows["file"] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return rows
