"""How many episodes have ended in a run, and in which step there are enough of them.

Episodes are counted as /episodes has them: faulted ones too, and those of envs that were lost with their rank.  The
order is that of steps, then of env indices, so that the step does not depend on ranks.
"""

from collections.abc import Collection, Iterable

import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import Block
from mpi_rollout.envs.replaying import Past


class EpisodeGoal:
    """Finds the first step after which `num_episodes` episodes have ended.

    With `has_reset_rows`, a row that only resets follows the end of each episode.  It is an end of another one only if
    its env failed.
    """

    def __init__(self, num_episodes: int, num_envs: int, has_reset_rows: bool):
        self.num_episodes, self.has_reset_rows = num_episodes, has_reset_rows
        self.num_ended = 0  # Episodes that ended in the rows so far; several may end in the last step.
        self._ended = np.zeros(num_envs, np.bool_)  # Envs whose episode ended in the last row.
        self._faults: set[tuple[int, int]] = set()

    def begin_after(self, past: Past, lost: Collection[int]) -> None:
        """Go on after the steps of an earlier start, at whose end the episodes of the `lost` envs were ended."""
        self.num_ended = int(past.episodes.sum()) + len(lost)
        self._ended = past.starts > past.num_steps
        self._ended[sorted(lost)] = True

    @property
    def num_missing(self) -> int:
        """Episodes that have still to end; 0 where the goal is reached."""
        return max(self.num_episodes - self.num_ended, 0)

    def note_faults(self, step: int, env_indices: Iterable[int]) -> None:
        """Note which envs failed in a step, before its row is counted."""
        self._faults.update((step, env_index) for env_index in env_indices)

    def count(self, block: Block, start: int, stop: int) -> int:
        """Count the ends in rows start to stop, up to the row that reaches the goal; return the row behind it."""
        ends = block.terminations[start:stop] | block.truncations[start:stop]
        before = np.concatenate([self._ended[None], ends[:-1]])
        is_episode = ends & ~before if self.has_reset_rows else ends
        for step, env_index in self._faults:
            if 0 <= (row := step - block.start - start) < len(ends):
                is_episode[row, env_index] = ends[row, env_index]
        totals = is_episode.sum(axis=1).cumsum()
        last = min(int(np.searchsorted(totals, self.num_missing)), len(ends) - 1)
        self.num_ended, self._ended = self.num_ended + int(totals[last]), ends[last]
        self._faults = {fault for fault in self._faults if fault[0] > block.start + start + last}
        return start + last + 1


def make_goal(
    config: RolloutConfig, has_reset_rows: bool, past: Past | None, lost: Collection[int]
) -> EpisodeGoal | None:
    """Return the goal of a run, if it has one, after what an earlier start of it has collected."""
    if config.num_episodes is None:
        return None
    goal = EpisodeGoal(config.num_episodes, config.num_envs, has_reset_rows)
    if past is not None:
        goal.begin_after(past, lost)
    return goal
