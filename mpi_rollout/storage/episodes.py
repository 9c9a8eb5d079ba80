"""Episodes, computed from the columns of a run: array operations over whole blocks, for any number of envs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import RESULTS, outcomes_of
from mpi_rollout.core.layout import Block
from mpi_rollout.core.seeding import seeds_of_episodes
from mpi_rollout.storage.episode_order import first_of_group, position_in_group
from mpi_rollout.storage.file_chunks import FileChunks
from mpi_rollout.storage.schema import RESET, RETURN_OF, agents_in, episode_dtype

if TYPE_CHECKING:
    from mpi_rollout.storage.recovery import SetSource

WIDE = 512  # From so many envs on, a row at a time takes a tenth of the time of segments; with few, three times it.


@dataclass(frozen=True)
class StoredResults:
    """Consecutive steps of all envs from a file, arrays of shape (num_rows, num_envs); row 0 is step `start`."""

    start: int
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    agent_rewards: Sequence[np.ndarray] = ()


class EpisodeTable:
    """Computes the rows of /episodes while blocks come in.

    An episode is the steps `start` to `start + length - 1` of one env: its transitions, all of them and no others.
    After its last step comes one row that only resets, and belongs to no episode; but see `num_reset_rows`.  That row
    may itself be an end.  If a fault is known there, the episode that should have begun has length 0.  If not, there
    is no env any more, until a row comes that is no end.

    Parameters
    ----------
    seed
        Of the run; None where the envs have no seed for each episode; -1 is stored then.
    first_env
        The index of env 0 in a larger run, from which seeds follow.
    agents
        Those of each env, whose returns are computed as well.
    num_reset_rows
        Rows between two episodes: 1, or 0 where envs begin the next episode in the step that ends one.  There is none
        where a trainer has reset the env, see `note_resets`.
    """

    def __init__(
        self,
        num_envs: int,
        seed: int | None,
        num_reset_rows: int = 1,
        first_env: int = 0,
        agents: Sequence[str] = (),
    ):
        self._dtype, self._returned = episode_dtype(agents), ["return", *(RETURN_OF + agent for agent in agents)]
        self._run_seed, self._to_next, self._first_env = seed, 1 + num_reset_rows, first_env
        self._start = np.zeros(num_envs, np.int64)
        self._returns = np.zeros((len(self._returned), num_envs))  # Of the running episodes: the whole, each agent's.
        self._count = np.zeros(num_envs, np.int64)
        self._held = np.zeros(0, self._dtype)
        self._faults: list[tuple[int, int]] = []
        self._reset_parts = [np.zeros(0, RESET)]

    def note_resets(self, resets: np.ndarray) -> None:
        """Take in rows of /resets, before the rows of the steps before them are added."""
        self._reset_parts.append(resets)  # A copy of all of them each time would take longer from reset to reset.

    @property
    def _resets(self) -> np.ndarray:
        """Those with which an episode that has not ended may begin."""
        if len(self._reset_parts) > 1:
            self._reset_parts = [np.concatenate(self._reset_parts)]
        return self._reset_parts[0]

    def note_faults(self, faults: np.ndarray) -> None:
        """Take in rows of /faults, before the rows of their steps are added."""
        self._faults += zip(faults["env_index"].tolist(), faults["step"].tolist(), strict=True)

    def skip(self, ended: np.ndarray) -> np.ndarray:
        """Begin behind episodes that have ended; return for each env the step from which its rows are to be added.

        Of a file without /resets, which says by itself where episodes begin.
        """
        ends = np.zeros(len(self._start), np.int64)
        np.maximum.at(ends, ended["env_index"], ended["start"] + ended["length"])
        has_ended = np.bincount(ended["env_index"], minlength=len(ends))
        self._start = np.where(has_ended > 0, ends + self._to_next - 1, 0)
        self._count = has_ended
        return ends

    def lose(self, lost: Collection[int], num_steps: int) -> np.ndarray:
        """End the running episodes of some envs after `num_steps` steps, as truncated and faulted; return their rows.

        An episode that had only begun has length 0, and the truncation is in the row that reset it.
        """
        env = np.array(sorted(lost), np.int64)
        rows = self._running(env, num_steps)
        rows["truncated"] = rows["faulted"] = True
        self._start[env], self._returns[:, env] = num_steps - 1 + self._to_next, 0.0
        self._count[env] += 1
        return rows

    def add(self, block: Block | StoredResults, start: int, stop: int) -> None:
        """Take in rows `start` to `stop` - 1 of a block."""
        ends = block.terminations[start:stop] | block.truncations[start:stop]
        if len(self._start) >= WIDE and not self._faults and not len(self._resets):
            self._add_by_rows(block, start, ends)
            return
        rewards = [own[start:stop] for own in (block.rewards, *block.agent_rewards)]
        returns, env, step, is_end = self._segments(ends, rewards)
        env, row, is_first = env[is_end], step[is_end], first_of_group(env[is_end])
        end = block.start + start + row
        following = end + self._to_next  # Where the next episode of the env starts.
        is_reset = self._place_of_reset(env, end + 1) >= 0
        following[is_reset] = end[is_reset] + 1
        starts = np.where(is_first, self._start[env], np.append(0, following[:-1])[: len(end)])
        rows = self._ended(block, start + row, env, starts, returns[:, is_end])
        rows["faulted"] = self._take_faults(env, end, block.start + stop)
        self._start[env] = following  # If an env has several episodes, the last one stays.
        is_episode = (rows["length"] > 0) | rows["faulted"]
        rows, env, end = rows[is_episode], env[is_episode], end[is_episode]
        rows["seed"] = self._seed(env, rows["start"], self._count[env] + position_in_group(first_of_group(env)))
        self._count += np.bincount(env, minlength=len(self._count))
        order = np.argsort(end * len(self._count) + env)  # One key: a tenth of the time of two.
        self._held = np.concatenate([self._held, rows[order]])
        self._reset_parts = [self._resets[self._resets["step"] >= self._start[self._resets["env_index"]]]]

    def _add_by_rows(self, block: Block | StoredResults, start: int, ends: np.ndarray) -> None:
        """Do the same row by row, where nobody knows of faults.  Sums are in step order here as well."""
        whole = np.zeros(0, np.int64)
        parts = [(whole, self._returns[:, :0], whole, whole, whole)]
        for row, env in enumerate(map(np.flatnonzero, ends), start):
            for own, rewards in zip(self._returns, (block.rewards, *block.agent_rewards), strict=True):
                own += rewards[row]
            if len(env):
                end, begun = block.start + row, self._start[env]
                parts.append((env, self._returns[:, env], begun, self._count[env], np.full(len(env), row)))
                self._returns[:, env], self._start[env] = 0.0, end + self._to_next
                self._count[env] += begun <= end  # A row that reset the env belongs to no episode.
        env, returns, starts, counts, row_of = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
        is_episode = starts <= block.start + row_of
        rows = self._ended(block, row_of, env, starts, returns)[is_episode]
        rows["seed"] = self._seed(rows["env_index"], rows["start"], counts[is_episode])
        self._held = np.concatenate([self._held, rows])

    def _take_faults(self, env: np.ndarray, end: np.ndarray, stop: int) -> np.ndarray:
        """Tell which episodes, of these envs and last steps, end by a fault; forget faults before step `stop`."""
        if not self._faults:
            return np.zeros(len(env), np.bool_)
        num_envs = len(self._start)
        faults = [step * num_envs + env_index for env_index, step in self._faults]
        self._faults = [fault for fault in self._faults if fault[1] >= stop]
        return np.isin(end * num_envs + env, faults)

    def _segments(self, ends: np.ndarray, rewards: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Cut the rows into segments, each of one episode, env after env.

        Returns
        -------
        For each segment the sums of rewards, the env, the last row, and whether the episode ends there.

        Notes
        -----
        Sums are float64 in step order: `np.bincount` adds in order, where `sum` adds pairwise.  So a return does not
        depend on how a run is cut into blocks, and has the last digit of Gymnasium's RecordEpisodeStatistics.
        """
        num_rows, num_envs = ends.shape
        values = np.empty((num_envs, num_rows + 1))  # What the running episode has so far is first.
        is_last = np.zeros(values.shape, np.bool_)
        is_last[:, 1:] = ends.T
        is_end = is_last.copy()
        is_last[:, -1] = True
        last = np.flatnonzero(is_last)
        segment = np.repeat(np.arange(len(last)), np.diff(last, prepend=-1))
        returns = np.empty((len(rewards), len(last)))
        for sums, running, own in zip(returns, self._returns, rewards, strict=True):
            values[:, 0], values[:, 1:] = running, own.T
            sums[:] = np.bincount(segment, values.ravel(), len(last))
        env, step = np.divmod(last, num_rows + 1)
        is_end = is_end.ravel()[last]
        self._returns[:] = 0.0
        self._returns[:, env[~is_end]] = returns[:, ~is_end]
        return returns, env, step - 1, is_end

    def _seed(self, env: np.ndarray, start: np.ndarray, episode: np.ndarray) -> np.ndarray:
        """Return the seeds of episodes, by their envs, first steps, and how many of the env were before; -1: none."""
        if self._run_seed is not None:
            return seeds_of_episodes(self._run_seed, env + self._first_env, episode)
        if not len(self._resets):
            return np.full(len(env), -1)
        place = self._place_of_reset(env, start)
        return np.where(place >= 0, self._resets["seed"][place], -1)

    def _place_of_reset(self, env: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return where in the resets the last one is of each env before each step; -1 where there is none."""
        if not len(self._resets):
            return np.full(len(env), -1)
        num_envs = len(self._start)
        keys, asked = self._resets["step"] * num_envs + self._resets["env_index"], step * num_envs + env
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], asked, side="right") - 1
        return np.where(keys[order][place] == asked, order[place], -1)  # At -1 is the last one, which is later.

    def take(self, num_steps: int) -> np.ndarray:
        """Take out the episodes that ended before step `num_steps`, in order of their ends, then of env index."""
        is_over = self._held["start"] + self._held["length"] <= num_steps
        rows: np.ndarray = self._held[is_over]
        self._held = self._held[~is_over]
        return rows

    def unfinished(self, num_steps: int) -> np.ndarray:
        """Return the episodes under way at the end of a run of `num_steps`, neither terminated nor truncated."""
        return self._running(np.flatnonzero(self._start < num_steps), num_steps)

    def _running(self, env: np.ndarray, num_steps: int) -> np.ndarray:
        start = self._start[env]
        rows = self._rows(env, start, num_steps - start, self._returns[:, env])
        rows["seed"] = self._seed(env, start, self._count[env])
        return rows

    def _ended(
        self, block: Block | StoredResults, row: np.ndarray, env: np.ndarray, start: np.ndarray, returns: np.ndarray
    ) -> np.ndarray:
        """Make the rows of episodes, by the rows of a block in which they end, their envs, first steps and returns."""
        rows = self._rows(env, start, block.start + row - start + 1, returns)
        rows["terminated"], rows["truncated"] = block.terminations[row, env], block.truncations[row, env]
        return rows

    def _rows(self, env: np.ndarray, start: np.ndarray, length: np.ndarray, returns: np.ndarray) -> np.ndarray:
        rows = np.zeros(len(env), self._dtype)
        rows["env_index"], rows["start"], rows["length"] = env, start, length
        for name, own in zip(self._returned, returns, strict=True):
            rows[name] = own
        return rows


def make_table(
    config: RolloutConfig,
    attributes: Mapping[str, object],
    faults: np.ndarray | None = None,
    resets: np.ndarray | None = None,
) -> EpisodeTable:
    """Make the empty table of a run; it knows of these rows of /faults and /resets."""
    seed = config.seed if attributes["has_episode_seeds"] else None
    sizes = num_reset_rows_of(attributes), config.first_env
    table = EpisodeTable(config.num_envs, seed, *sizes, agents_in(attributes))
    if faults is not None:
        table.note_faults(faults)
    if resets is not None:
        table.note_resets(resets)
    return table


def num_reset_rows_of(attributes: Mapping[str, object]) -> int:
    """Return the number of rows between two episodes of an env, in a file with these attributes."""
    return int(attributes.get("autoreset_mode", AutoresetMode.NEXT_STEP.value) == AutoresetMode.NEXT_STEP.value)


def stored_results(
    stored: "FileChunks | SetSource",
    attributes: Mapping[str, object],
    num_steps: int,
    nbytes: int = 2**22,
    first: int = 0,
) -> Iterator[StoredResults]:
    """Read rewards and ends of steps `first` to `num_steps` - 1, block by block; ContentError if they are damaged."""
    names = [*outcomes_of(agents := agents_in(attributes))][: len(RESULTS) + len(agents)]
    columns = [stored.chunks(f"trajectories/{name}") for name in names]
    row_nbytes = 8 * columns[0].shape[1]
    num_rows = -(-nbytes // (row_nbytes * columns[0].rows)) * columns[0].rows
    for start in range(first, num_steps, num_rows):
        results = [column.read(start, min(start + num_rows, num_steps)) for column in columns]
        rewards, terminations, truncations, *agent_rewards = results
        yield StoredResults(start, rewards, terminations, truncations, agent_rewards)
