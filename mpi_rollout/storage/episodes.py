"""Episodes, found in the columns of a run: array operations over whole blocks, whatever the number of envs."""

import numpy as np

from mpi_rollout.layout import Block
from mpi_rollout.seeding import SeedTable
from mpi_rollout.storage.schema import EPISODE


class EpisodeTable:
    """Finds the rows of /episodes while blocks come in.

    An episode is the steps `start` to `start + length - 1` of one env: its transitions, all of them and no others.
    After its last step comes one row that only resets, and belongs to no episode.

    Parameters
    ----------
    seeds
        None where the envs do not have a seed per episode; stored as -1.
    """

    def __init__(self, num_envs: int, seeds: SeedTable | None):
        self._seeds = seeds
        self._start = np.zeros(num_envs, np.int64)
        self._return = np.zeros(num_envs)
        self._count = np.zeros(num_envs, np.int64)
        self._held = np.zeros(0, EPISODE)

    def add(self, block: Block, start: int, stop: int) -> None:
        """Take in rows start to stop of a block."""
        terminations, truncations = block.terminations[start:stop], block.truncations[start:stop]
        ends = terminations | truncations
        segment = np.cumsum(ends, axis=0) - ends  # How many episodes of the env have ended before, in these rows.
        returns = self._sum_by_segment(segment, block.rewards[start:stop], ends)
        step, env = np.nonzero(ends)  # In the order step, env.
        rows = np.zeros(len(step), EPISODE)
        rows["env_index"], rows["return"] = env, returns[segment[step, env], env]
        rows["start"], rows["length"] = self._span(env, block.start + start + step, segment[step, env])
        rows["seed"] = self._seed(env, self._count[env] + segment[step, env])
        rows["terminated"], rows["truncated"] = terminations[step, env], truncations[step, env]
        self._count += ends.sum(axis=0)
        self._held = np.concatenate([self._held, rows])

    def _sum_by_segment(self, segment: np.ndarray, rewards: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Returns of shape (segments, num_envs): float64 sums in step order, as one would add them up by hand.

        `np.bincount` adds in order, where `sum` adds pairwise: so the result does not depend on how a run is cut
        into blocks, nor differ from Gymnasium's RecordEpisodeStatistics in the last digit.
        """
        num_envs = rewards.shape[1]
        bins = segment * num_envs + np.arange(num_envs)
        bins = np.concatenate([np.arange(num_envs), bins.ravel()])
        weights = np.concatenate([self._return, rewards.ravel()])
        num_segments = int(ends.sum(axis=0).max(initial=0)) + 1
        sums = np.bincount(bins, weights, num_segments * num_envs).reshape(num_segments, num_envs)
        self._return = sums[ends.sum(axis=0), np.arange(num_envs)]
        return sums

    def _span(self, env: np.ndarray, end: np.ndarray, nth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of the episodes that end at steps `end`, each the `nth` of its env in these rows."""
        by_env = np.lexsort((end, env))
        previous = np.empty_like(end)
        previous[by_env[1:]] = end[by_env[:-1]]
        start = np.where(nth == 0, self._start[env], previous + 2)
        last = by_env[np.append(env[by_env][1:] != env[by_env][:-1], True)] if len(env) else by_env
        self._start[env[last]] = end[last] + 2
        return start, end - start + 1

    def _seed(self, env: np.ndarray, episode: np.ndarray) -> np.ndarray:
        return np.full(len(env), -1) if self._seeds is None else self._seeds(env, episode)

    def take(self, num_steps: int) -> np.ndarray:
        """Take out the episodes that ended before step `num_steps`, in order of their ends, then of env index."""
        is_over = self._held["start"] + self._held["length"] <= num_steps
        rows, self._held = self._held[is_over], self._held[~is_over]
        return rows

    def unfinished(self, num_steps: int) -> np.ndarray:
        """The episodes that were under way at the end of a run of `num_steps`, neither terminated nor truncated."""
        env = np.flatnonzero(self._start < num_steps)
        rows = np.zeros(len(env), EPISODE)
        rows["env_index"], rows["start"], rows["length"] = env, self._start[env], num_steps - self._start[env]
        rows["return"], rows["seed"] = self._return[env], self._seed(env, self._count[env])
        return rows
