"""What one run has written, as a user reads it."""

import time
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import TABLE, Rows, column_of
from mpi_rollout.core.spaces import Tree, agents_of
from mpi_rollout.data.agent_run import AgentRun
from mpi_rollout.data.columns import Column, group_tree
from mpi_rollout.data.episodes import Episode
from mpi_rollout.data.reading import EpisodeRows, Reading, as_table, check_groups, chosen, ordered
from mpi_rollout.data.transitions import Batch, FileTransitions, Transitions
from mpi_rollout.errors import DataError
from mpi_rollout.storage.schema import episode_dtype
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import parsed, text
from mpi_rollout.storage.values import space_of


class RunData:
    """The data of one file: complete, recovered, or what a run has committed of a `.part`.

    Attributes
    ----------
    observation_space, action_space
        Of one env, made from what is stored of them.
    num_envs
        N, the number of envs.
    seed
        Of all random numbers of the run.
    env_id
        What `--env` was; None where a factory has made the envs.
    env_spec
        Gymnasium's EnvSpec in JSON; "" where the env has none.
    autoreset_mode
        When the envs were reset after an end.
    observations, actions
        Columns, in dicts and tuples as the space nests them.
    rewards, terminations, truncations
        Columns of shape (T, N): T steps of N envs.
    final_observations
        The last observations of episodes, in the rows of their ends, where the file has them; else None.
    extras, infos, final_infos
        Columns by name, in dicts: what the policy gave besides actions, what was stored of infos, and those that came
        with `final_observations`.
    agents
        The names of each env's agents; () where the env itself is the only one.  With agents, `rewards`,
        `terminations` and `truncations` are dicts by agent; those of the env as a whole are "__all__".
    alive
        By agent, columns of shape (T + 1, N): whether the agent acts in the step; {} without agents.
    """

    def __init__(self, path: str, agent: str | None = None):
        self._source, self._agent = StoredRun(path) if agent is None else AgentRun(path, agent), agent
        self._source.check_has_steps()
        attributes, names = self._source.attributes, self._source.leaves
        self.num_envs, self.seed, self.env_id = self.config.num_envs, self.config.seed, self.config.env
        self.env_spec = text(attributes, "env_spec")
        self.autoreset_mode = AutoresetMode(text(attributes, "autoreset_mode"))
        described = parsed(attributes, "spaces", dict)
        try:
            self.observation_space = space_of(described.get("observation"))
            self.action_space = space_of(described.get("action"))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        of_spaces = {"observation": self.observation_space, "action": self.action_space}
        self.spaces = {name: of_spaces.get(column.described_as) for name, column in TABLE.items()}
        self.observations, self.actions = self._columns("observations"), self._columns("actions")
        self.rewards, self.terminations, self.truncations = map(
            self._columns, ("rewards", "terminations", "truncations")
        )
        has_final = any(name.startswith("final_observations") for name in names)
        self.final_observations = self._columns("final_observations") if has_final else None
        self.extras, self.infos = self._columns("extras"), self._columns("infos")
        self.final_infos = self._columns("final_infos")
        self.agents, self.alive = agents_of(self.observation_space), self._columns("alive")

    def _columns(self, group: str) -> Tree:
        return group_tree(self._source.leaves, group, self.spaces.get(group), partial(Column, self._source))

    def __enter__(self) -> "RunData":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; it is opened again if something is read."""
        self._source.close()

    def refresh(self) -> int:
        """Look how far a run has come that is writing the file; return the number of committed steps.

        When the run is complete, the file has lost the `.part` in its name: `path` is then the new name.
        """
        self._source.look()
        for name in ("episodes", "unfinished", "transitions"):
            self.__dict__.pop(name, None)
        return self.num_steps

    @property
    def path(self) -> str:
        """The whole path of the file."""
        return self._source.path

    @property
    def paths(self) -> list[str]:
        """The names of all files: one."""
        return [self.path]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the root group, as numbers and texts."""
        return {name: _plain(value) for name, value in self._source.attributes.items()}

    @property
    def config(self) -> RolloutConfig:
        """The options of the run."""
        return self._source.config

    @property
    def num_steps(self) -> int:
        """T, the number of committed steps."""
        return self._source.num_steps

    @property
    def is_complete(self) -> bool:
        """Whether the run has taken all its steps."""
        return self._source.is_complete

    @cached_property
    def episodes(self) -> np.ndarray:
        """The episodes that have ended, in order of their ends: a structured array.

        Those that were under way at the end are in `unfinished`; `inspect` counts both.  The columns are env_index,
        start, length, return, seed, terminated, truncated, faulted, and for each agent return_AGENT.
        """
        return self._source.ended

    @cached_property
    def unfinished(self) -> np.ndarray:
        """The episodes that the end of the data cuts: neither terminated nor truncated."""
        return self._source.unfinished()

    @property
    def num_transitions(self) -> int:
        """The number of transitions in all episodes, also in unfinished ones."""
        return int(self.episodes["length"].sum() + self.unfinished["length"].sum())

    @property
    def knows_final(self) -> bool:
        """Whether the file has the last observation of each episode that has ended."""
        return self.final_observations is not None or not self._has_gaps

    @property
    def transition_nbytes(self) -> int:
        """The bytes of one transition, in all columns that every transition has."""
        return sum(leaf.nbytes for name, leaf in self._source.leaves.items() if column_of(name).rows is not Rows.ENDS)

    def iter_episodes(
        self,
        episodes: EpisodeRows | None = None,
        *,
        min_return: float | None = None,
        max_return: float | None = None,
        min_length: int = 1,
        max_length: int | None = None,
        terminated: bool | None = None,
        unfinished: bool = False,
        columns: Iterable[str] | None = None,
        file: int = 0,
    ) -> Iterator[Episode]:
        """Iterate over episodes, in order of their ends; the file is read once.  DataError if it is damaged.

        Memory holds some 16 MiB at a time, or a chunk of each column, and the episodes that have begun in these.

        Parameters
        ----------
        episodes
            Rows of `data.episodes`, or of `data.unfinished`; None for all that have ended.
        min_return, max_return, min_length, max_length
            Bounds, inclusive.
        terminated
            True for episodes that the env has ended, False for the others.
        unfinished
            Also those that the end of the data cuts.
        columns
            The groups to read, such as "observations" or "infos"; None for all.
        file
            What `Episode.file` says.
        """
        rows = self._rows_of(episodes, unfinished)
        bounds = {"return": (min_return, max_return), "length": (min_length, max_length)}
        rows, groups = ordered(chosen(rows, bounds, terminated)), check_groups(columns)
        return Reading(self._source, rows, groups, self.spaces, self._has_gaps, file).episodes()

    def _rows_of(self, episodes: EpisodeRows | None, unfinished: bool) -> np.ndarray:
        """Return the rows that a user means; ValueError if they are of other data."""
        if episodes is None:
            return np.concatenate([self.episodes, self.unfinished]) if unfinished else self.episodes
        rows = as_table(episodes, episode_dtype(self.agents))
        if not self._source.has(rows).all():
            raise ValueError(f"episodes should be rows of the data that they are read from: {self!r} has no such steps")
        return rows

    @cached_property
    def transitions(self) -> Transitions:
        """All transitions by number, as a map-style dataset for PyTorch's `DataLoader`; unfinished episodes too.

        Where the file does not know an episode's last observation, its last transition is among them only if it
        terminates the episode; its next observation then repeats the one before.
        """
        rows = np.concatenate([self.episodes, self.unfinished])
        return Transitions([FileTransitions(self._source, self.spaces, self._has_gaps, rows)])

    def sample_transitions(self, size: int, rng: np.random.Generator | int | None = None) -> Batch:
        """Draw transitions at random, each with the same probability, with replacement.

        `rng` is where the random numbers come from, or a seed.  DataError if the checksum of a chunk does not fit,
        ValueError if there are no transitions.
        """
        return self.transitions.sample(size, rng)

    def follow(self, poll_s: float = 1.0, **options: Any) -> Iterator[Episode]:
        """Iterate over episodes while a run writes them, until it is complete; wait for those that are to come.

        A run commits every 10 s.  One that was stopped is waited for, since the same command continues it.  The file is
        looked at every `poll_s` seconds; `options` are those of `iter_episodes`.
        """
        num_seen = 0
        while True:
            rows = self.episodes[num_seen:]
            num_seen += len(rows)
            yield from self.iter_episodes(rows, **options)
            if self._source.is_sealed:
                return
            time.sleep(poll_s)
            self.refresh()

    @property
    def _has_gaps(self) -> bool:
        """Whether the row after an end is the next episode's, so that the last observation is elsewhere."""
        return self.final_observations is not None or self.autoreset_mode != AutoresetMode.NEXT_STEP

    def __repr__(self) -> str:
        env = self.env_id or self.config.env_factory
        return f"<RunData {self.path}: {env}, {self.num_envs:,} envs x {self.num_steps:,} steps>"

    def __reduce__(self) -> tuple[type["RunData"], tuple[str, str | None]]:
        return RunData, (self._source.path, self._agent)


def _plain(value: object) -> object:
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode(errors="replace").strip() if isinstance(value, bytes) else value
