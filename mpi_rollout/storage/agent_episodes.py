"""The episodes of one agent, computed from its columns: the one place that says where they begin and end.

A file has no table of them.  They follow from which steps the agent acts in, from its own ends, and from those of the
env, which are in the file.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mpi_rollout.core.columns import ALL_AGENTS, RESULTS
from mpi_rollout.storage.schema import EPISODE

BLOCK_SIZE = 2**19  # Rewards of 4 MiB.
Read = Callable[[str, int, int], np.ndarray]  # Takes a column's path below /trajectories, and a range of its rows.


@dataclass(frozen=True)
class AgentSteps:
    """Consecutive steps of one agent in all envs, arrays of shape (num_rows, num_envs); row 0 is step `start`.

    Attributes
    ----------
    alive
        Whether the agent acts; it has one row more.
    env_ends
        Whether the episode of the env ends.
    """

    start: int
    alive: np.ndarray
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    env_ends: np.ndarray

    @property
    def is_last(self) -> np.ndarray:
        """Whether an episode of the agent ends: by its own end, by a pause, or with the episode of the env."""
        goes_on = self.alive[1:] & ~(self.terminations | self.truncations | self.env_ends)
        return np.asarray(self.alive[:-1] & ~goes_on)

    @property
    def is_stray(self) -> np.ndarray:
        """Whether there is a reward or an end, though the agent does not act."""
        return np.asarray(((self.rewards != 0) | self.terminations | self.truncations) & ~self.alive[:-1])


def agent_steps(
    read: Read, agent: str, num_steps: int, num_envs: int, block_size: int = BLOCK_SIZE
) -> Iterator[AgentSteps]:
    """Read the columns of an agent block by block, of so many env steps; what `read` raises if they are damaged."""
    reward, *ends = RESULTS
    num_rows = max(block_size // max(num_envs, 1), 1)
    for start in range(0, num_steps, num_rows):
        stop = min(start + num_rows, num_steps)
        alive = read(f"alive/{agent}", start, stop + 1)
        rewards = read(f"{reward.path}/{agent}", start, stop)
        terminations, truncations = (read(f"{end.path}/{agent}", start, stop) for end in ends)
        has_terminated, is_truncated = (read(f"{end.path}/{ALL_AGENTS}", start, stop) for end in ends)
        yield AgentSteps(start, alive, rewards, terminations, truncations, has_terminated | is_truncated)


def agent_episodes(blocks: Iterable[AgentSteps], num_envs: int) -> np.ndarray:
    """Return the episodes of an agent as rows of `EPISODE`, env after env; their seeds and faults are not known here.

    An episode is a run of neighbouring steps in which the agent acts.  It is truncated where the agent has not
    terminated.  Those that the end of the data cuts are neither terminated nor truncated.
    """
    table = AgentTable(num_envs)
    parts = [table.add(block) for block in blocks]
    rows = np.concatenate([np.zeros(0, EPISODE), *parts, table.unfinished()])
    return rows[np.lexsort((rows["start"], rows["env_index"]))]


def within(rows: np.ndarray, of_envs: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Find in which episode of its env each episode of an agent lies.

    Returns
    -------
    The rows of these episodes of envs, for each row of the agent one; and whether the row is inside of it.
    """
    of_envs = of_envs[of_envs["length"] > 0]
    if not len(of_envs):
        return np.zeros(len(rows), of_envs.dtype), np.zeros(len(rows), np.bool_)
    begin = of_envs["env_index"] * num_steps + of_envs["start"]
    order = np.argsort(begin)
    places = np.searchsorted(begin[order], rows["env_index"] * num_steps + rows["start"], side="right") - 1
    around = of_envs[order[np.maximum(places, 0)]]
    is_inside = (places >= 0) & (around["env_index"] == rows["env_index"])
    return around, is_inside & (rows["start"] + rows["length"] <= around["start"] + around["length"])


class AgentTable:
    """Computes the episodes of an agent while blocks come in; `start` and `returns` are those of the running ones."""

    def __init__(self, num_envs: int):
        self._is_running = np.zeros(num_envs, np.bool_)
        self._start, self._returns = np.zeros(num_envs, np.int64), np.zeros(num_envs)
        self._stop = 0

    def add(self, block: AgentSteps) -> np.ndarray:
        """Take in a block; return the rows of the episodes that end in it.

        Column 0 of these arrays is what the running episodes have so far, so that returns are summed in step order:
        `np.bincount` adds in order.
        """
        acts, is_last, num_rows = block.alive[:-1].T, block.is_last.T, len(block.rewards)
        is_member = np.column_stack([self._is_running, acts])
        is_end = np.column_stack([np.zeros(len(acts), np.bool_), is_last])
        is_start = is_member & ~np.column_stack([np.zeros(len(acts), np.bool_), (is_member & ~is_end)[:, :-1]])
        env, column = np.nonzero(is_start)
        starts = np.where(column == 0, self._start[env], block.start + column - 1)
        values = np.column_stack([self._returns, block.rewards.T])
        number = np.cumsum(is_start.ravel()) - 1
        returns = np.bincount(number[is_member.ravel()], values[is_member], len(starts))
        self._is_running, self._stop = is_member[:, -1] & ~is_end[:, -1], block.start + num_rows
        is_open = np.append(env[1:] != env[:-1], True)[: len(env)] & self._is_running[env]
        self._start[env[is_open]], self._returns[env[is_open]] = starts[is_open], returns[is_open]
        ended_env, last = np.nonzero(is_end)
        rows = _rows(ended_env, starts[~is_open], block.start + last, returns[~is_open])
        rows["terminated"] = block.terminations[last - 1, ended_env]
        rows["truncated"] = block.truncations[last - 1, ended_env] | ~rows["terminated"]
        return rows

    def unfinished(self) -> np.ndarray:
        """Return the rows of the episodes that are under way after the last block."""
        env = np.flatnonzero(self._is_running)
        return _rows(env, self._start[env], self._stop, self._returns[env])


def _rows(env: np.ndarray, start: np.ndarray, stop: np.ndarray | int, returns: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(env), EPISODE)
    rows["env_index"], rows["start"], rows["length"], rows["return"] = env, start, stop - start, returns
    return rows
