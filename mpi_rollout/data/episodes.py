"""Episodes: the transitions of one env from a reset to an end, with every observation that it gave.

What `reading` has read is laid env after env, so that each array of an episode is a slice of it: contiguous, and no
copy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, map_tree
from mpi_rollout.data.columns import group_tree

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class EpisodeColumns:
    """Rows of some episodes, one after the other, by the names of columns.

    Attributes
    ----------
    arrays
        There is one row more for each env, after its last: of observations and infos the one that followed.
    rows
        Their rows of the table of episodes.
    has_gaps
        The rows of an episode's observations are not followed by its last one: it is in `final_observations`.
    """

    arrays: Arrays
    rows: np.ndarray
    spaces: dict[str, Space | None]
    file: int
    has_gaps: bool

    @cached_property
    def single_observations(self) -> np.ndarray | None:
        """The observations, if they are one array, in which each episode is whole."""
        return None if self.has_gaps else self.arrays.get("observations")


class Episode:
    """One episode; its arrays are views of memory that it shares with others: copy what you keep."""

    __slots__ = ("_columns", "_index", "_states", "_steps")

    def __init__(self, columns: EpisodeColumns, index: int, steps: slice, states: slice):
        # Short episodes are many: to make one and an array of it takes Python a third of a microsecond.
        self._columns = columns
        self._index = index
        self._steps = steps
        self._states = states

    def __repr__(self) -> str:
        what = f"env {self.env_index}, start {self.start:,}, length {self.length:,}, return {self.return_:g}"
        return f"<Episode: {what}, seed {self.seed}>"

    @property
    def row(self) -> np.void:
        """Its row of `data.episodes`."""
        return self._columns.rows[self._index]

    @property
    def env_index(self) -> int:
        """The place of its env, from 0 on."""
        return int(self.row["env_index"])

    @property
    def start(self) -> int:
        """The step of its first transition."""
        return int(self.row["start"])

    @property
    def length(self) -> int:
        """The number of its transitions."""
        return int(self._steps.stop - self._steps.start)

    def __len__(self) -> int:
        return self.length

    @property
    def return_(self) -> float:
        """The sum of its rewards."""
        return float(self.row["return"])

    @property
    def seed(self) -> int:
        """What its env was reset with; -1 where episodes have no seeds of their own."""
        return int(self.row["seed"])

    @property
    def terminated(self) -> bool:
        """Whether the env has ended it."""
        return bool(self.row["terminated"])

    @property
    def truncated(self) -> bool:
        """Whether it was cut by a limit, or by a fault.  An episode that the run's end has cut is not `truncated`."""
        return bool(self.row["truncated"])

    @property
    def faulted(self) -> bool:
        """Whether a failure of the env has ended it."""
        return bool(self.row["faulted"])

    @property
    def file(self) -> int:
        """The index of its file in `data.paths`."""
        return self._columns.file

    @property
    def knows_final(self) -> bool:
        """Whether the last row of `observations` is what the env gave; if not, it repeats the one before."""
        return not self._has_gap or any(name.startswith("final_observations") for name in self._columns.arrays)

    @property
    def observations(self) -> Tree:
        """The (length + 1, ...) observations, of which the last came with the last transition."""
        whole = self._columns.single_observations
        return self._tree("observations", self._seen) if whole is None else whole[self._states]

    @property
    def actions(self) -> Tree:
        """The (length, ...) actions."""
        whole = self._columns.arrays.get("actions")
        return self._tree("actions") if whole is None else whole[self._steps]

    @property
    def rewards(self) -> Tree:
        """The (length,) rewards, float64; of an env with agents a dict by agent, and "__all__" for their sums."""
        whole = self._columns.arrays.get("rewards")
        return self._tree("rewards") if whole is None else whole[self._steps]

    @property
    def terminations(self) -> Tree:
        """The (length,) flags, of which the last may be True; with agents a dict, as `rewards` is."""
        return self._tree("terminations")

    @property
    def truncations(self) -> Tree:
        """The (length,) flags, of which the last may be True; with agents a dict, as `rewards` is."""
        return self._tree("truncations")

    @property
    def alive(self) -> dict[str, np.ndarray]:
        """Whether each agent acts in a step, (length + 1,) flags by agent; {} without agents."""
        return self._tree("alive", self._seen)

    @property
    def extras(self) -> Tree:
        """What the policy gave besides actions: a dict by name of arrays (length, ...)."""
        return self._tree("extras")

    @property
    def infos(self) -> Tree:
        """What was stored of the infos: a dict by name of arrays (length + 1, ...), the first from the reset.

        Beside NAME is the mask `_NAME`: whether the env gave it.
        """
        return self._tree("infos", self._seen)

    def steps_rlds(self) -> Iterator[dict[str, Tree]]:
        """Yield the length + 1 steps of an episode as RLDS has them; arrays are views, numbers NumPy's.

        Step t has `observation` t, `action` t, the `reward` that followed, `discount`, `is_first`, `is_last` and
        `is_terminal`; where the file has them also `info` of the observation, `extra`, what the policy gave besides
        the action, and `alive`, which agents act.  The last step has the last observation; its action, reward, discount
        and extra are zeros, without meaning.  The discount is 0 where the env has ended the episode, else 1.
        """
        rows = {"observation": self.observations, "info": self.infos or None, "action": self.actions}
        rows |= {"reward": self.rewards, "extra": self.extras or None, "alive": self.alive or None}
        for step in range(self.length + 1):
            is_last = step == self.length
            ends = self.terminated and step == self.length - 1
            yield {
                **{name: map_tree(partial(_row, step=step), tree) for name, tree in rows.items() if tree is not None},
                "discount": np.float64(0 if is_last or ends else 1),
                "is_first": np.bool_(step == 0),
                "is_last": np.bool_(is_last),
                "is_terminal": np.bool_(is_last and self.terminated),
            }

    @property
    def _has_gap(self) -> bool:
        return self._columns.has_gaps and (self.terminated or self.truncated)

    def _tree(self, group: str, rows_of: Callable[[str], np.ndarray] | None = None) -> Tree:
        return group_tree(self._columns.arrays, group, self._columns.spaces.get(group), rows_of or self._slice)

    def _slice(self, name: str) -> np.ndarray:
        return self._columns.arrays[name][self._steps]

    def _seen(self, name: str) -> np.ndarray:
        """Return observations or infos, with the last one where it belongs."""
        rows = self._columns.arrays[name][self._states]
        if not self._has_gap:
            return rows
        rows = rows.copy()
        final = self._columns.arrays.get(f"final_{name}")
        if final is not None:
            rows[-1] = final[self._steps.stop - 1]
        elif name.startswith(("infos", "alive")):  # After the last step of an episode no agent acts.
            rows[-1] = np.zeros((), rows.dtype)
        elif self.length:
            rows[-1] = rows[-2]
        return rows


def _row(rows: np.ndarray, step: int) -> np.ndarray:
    """Return a row; zeros behind the last one."""
    return np.asarray(rows[step] if step < len(rows) else np.zeros(rows.shape[1:], rows.dtype))[()]
