"""How leaves become bytes: the slots that ranks send, the blocks that are written, and the way between them.

Everything that moves is one column per leaf, the env axis first.  A *slot* is what one rank sends for the steps of one
fragment.  Each of its rows is one step: the columns, packed one after the other.  So the first rows of a slot are a
message, too.  A *block* is columns with a leading time axis.  Both are laid out once, from the spaces.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np

from mpi_rollout.core.columns import ALIVE, outcomes_of, stored_leaves, with_masks
from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, Space, Tree, agents_of, leaves, tree_of

ALIGNMENT = 64  # Bytes: a cache line, so that no column of a slot starts inside a word or a SIMD register.

# The mark of a slot's row says what the root must know.  0: all is well.  The negative number of a signal: end the run.
FAULT = 1  # Envs have failed in this step, and the run ends.
RESTARTED = 2  # Envs have failed and were restarted; the infos say which ones.
LOST = 3  # The rank of this slot is gone.
UNDONE = 4  # The fragment was cut short, by a signal or to serve other ranks: the rank has not taken this step.
NOTED = 5  # The rank has noted something about its envs, which the root may ask for; all else is well.


@dataclass(frozen=True)
class Contents:
    """What moves in each step: the spaces of a single env, and what slots and blocks have besides results.

    Slots have final observations in SAME_STEP mode, and actions where the ranks have the last word on them.  Then they
    have `extras` too: what a policy gives besides actions.  With `counts_only` nobody reads what the envs give, and it
    is left out.  With `keeps_infos` the infos are stored.  With `pickles_infos` all infos follow the slots.
    """

    observation_space: Space
    action_space: Space
    has_final_observations: bool = False
    infos: tuple[Leaf, ...] = ()
    has_actions: bool = False
    counts_only: bool = False
    extras: tuple[Leaf, ...] = ()
    keeps_infos: bool = False
    pickles_infos: bool = False

    @property
    def kept_infos(self) -> tuple[Leaf, ...]:
        """The infos that blocks have, too."""
        return self.infos if self.keeps_infos else ()

    def row_nbytes(self, num_envs: int) -> int:
        """Return the bytes of one step of so many envs in a block."""
        agents = agents_of(self.observation_space)
        columns = leaves(self.observation_space) + leaves(self.action_space) + self.extras + with_masks(self.kept_infos)
        by_ranks = *outcomes_of(agents).values(), *(ALIVE for _ in agents)
        return num_envs * sum(leaf.nbytes for leaf in columns + by_ranks)


@dataclass(frozen=True)
class Columns:
    """The outcome of one step of some envs: arrays that share their first axis.

    `action_arrays` exist where the ranks have the last word on actions.  `extra_arrays` are what a policy on the ranks
    gives besides actions.  `final_observation_arrays` exist in SAME_STEP mode only, and have a meaning only where an
    episode has ended.  `info_arrays` are pairs of values and mask.  Where envs have agents, `observation_arrays` have
    `ALIVE` of each behind the leaves of observations; `agent_results` are their own, see `columns.outcomes_of`.
    """

    observations: Tree
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    observation_arrays: tuple[np.ndarray, ...]
    action_arrays: tuple[np.ndarray, ...] = ()
    final_observation_arrays: tuple[np.ndarray, ...] = ()
    info_arrays: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    extra_arrays: tuple[np.ndarray, ...] = ()
    agent_results: tuple[np.ndarray, ...] = ()

    @property
    def results(self) -> tuple[np.ndarray, ...]:
        return self.rewards, self.terminations, self.truncations

    @property
    def outcomes(self) -> tuple[np.ndarray, ...]:
        return self.results + self.agent_results

    @property
    def alive_arrays(self) -> tuple[np.ndarray, ...]:
        """Which agents act in the next step, an array for each agent."""
        num_agents = len(self.agent_results) // len(self.results)
        return self.observation_arrays[len(self.observation_arrays) - num_agents :]


HEADER = (  # Eight bytes each, in the first cache line.
    Leaf(("step_s",), np.dtype(np.float64), ()),  # The seconds of the rank's envs; in row 0 for the whole fragment.
    Leaf(("mark",), np.dtype(np.int64), ()),  # See above.
    Leaf(("has_infos",), np.dtype(np.int64), ()),  # In row 0, not 0: a message with infos follows.
    Leaf(("word",), np.dtype(np.int64), ()),  # In row 0: for the transport.
    Leaf(("num_ended",), np.dtype(np.int64), ()),  # The rank's envs that the next step only resets.
)


class SlotLayout:
    """Where the parts of a slot's row lie, for `capacity` envs each, `nbytes` in all.

    Header and `columns.outcomes_of` come first, `head_nbytes`.  Then come observations, with `ALIVE` of each agent; and
    only where they are wanted actions, extras, final observations, and infos (for each its values and a mask of the
    envs that have it).
    """

    def __init__(self, contents: Contents, capacity: int) -> None:
        self.observation_space, self.capacity, self.infos = contents.observation_space, capacity, contents.infos
        agents, observations = agents_of(self.observation_space), leaves(self.observation_space)
        self.observations = () if contents.counts_only else observations + (ALIVE,) * len(agents)
        has_actions = contents.has_actions
        self.actions, self.extras = (leaves(contents.action_space), contents.extras) if has_actions else ((), ())
        outcomes = () if contents.counts_only else tuple(outcomes_of(agents).values())
        finals = observations if contents.has_final_observations else ()
        self._groups = outcomes, self.observations, self.actions, self.extras, finals, with_masks(self.infos)
        columns = [leaf for group in self._groups for leaf in group]
        formats = [(leaf.dtype, leaf.shape) for leaf in HEADER]
        formats += [(leaf.dtype, (capacity, *leaf.shape)) for leaf in columns]
        sizes = [-(-capacity * leaf.nbytes // ALIGNMENT) * ALIGNMENT for leaf in columns]
        starts = list(accumulate(sizes, initial=ALIGNMENT))
        self.nbytes, self.head_nbytes = starts[-1], starts[len(outcomes)]
        offsets = [*range(0, 8 * len(HEADER), 8), *starts[:-1]]
        names = [str(index) for index in range(len(formats))]
        self._row = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": self.nbytes})

    def header(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return views (*lead,) of the fields of `HEADER` in rows of slots, an array (*lead, nbytes)."""
        return self._fields(rows)[: len(HEADER)]

    def _fields(self, buffer: np.ndarray) -> list[np.ndarray]:
        rows = buffer.view(self._row)[..., 0]
        return [rows[name] for name in self._row.names or ()]

    def columns(self, rows: np.ndarray, num_envs: int) -> Columns:
        """Return views of shape (*lead, num_envs, ...) of all columns of rows, an array (*lead, nbytes)."""
        first_envs = (*(slice(None),) * (rows.ndim - 1), slice(num_envs))
        views = iter([field[first_envs] for field in self._fields(rows)[len(HEADER) :]])
        outcomes, observations, *others = (tuple(islice(views, len(group))) for group in self._groups)
        actions, extras, final_observations, infos = others
        if not outcomes:
            none = np.zeros((*rows.shape[:-1], 0))
            return Columns((), none, none, none, ())
        rewards, terminations, truncations, *agent_results = outcomes
        pairs = tuple(zip(infos[::2], infos[1::2], strict=True))
        arrays = observations, actions, final_observations, pairs, extras, tuple(agent_results)
        return Columns(tree_of(self.observation_space, observations), rewards, terminations, truncations, *arrays)


class Block:
    """`num_rows` consecutive steps of all envs: observation t, action t, and what followed it, in row t.

    `named` holds the C-contiguous arrays of shape (num_rows, num_envs, ...) by their path in a file.  `info_arrays` are
    values and mask of each info; those of row t came with observation t.  `observation_arrays` are as in `Columns`,
    `state_arrays` these and infos together, `shown_arrays` the same without `ALIVE`; `final_arrays` are the last ones
    of these.  `step_s` and `num_ended` (num_rows, num_slots) are the seconds of the slots' steps, and the ends of their
    episodes.

    A recording has columns for the last observations and infos of episodes, too, in the rows of their last steps.
    """

    def __init__(
        self, contents: Contents, num_envs: int, num_slots: int, num_rows: int, is_recording: bool = False
    ) -> None:
        self.num_rows = num_rows
        self.start = 0  # The step of row 0.
        self.named: dict[str, np.ndarray] = {}
        self.headers = np.zeros((num_rows, num_slots, len(HEADER)), np.int64)  # Those of the slots' rows.
        self.step_s, self.num_ended = self.headers[..., 0].view(np.float64), self.headers[..., -1]
        described = {"observation": leaves(contents.observation_space), "action": leaves(contents.action_space)}
        described |= {"extra": contents.extras, "info": contents.kept_infos}
        agents, counts_only = agents_of(contents.observation_space), contents.counts_only
        stored = {} if counts_only else stored_leaves(described, is_recording, agents)
        arrays: dict[str, list[np.ndarray]] = defaultdict(list)
        for column, group in stored.items():
            for name, leaf in group.items():
                self.named[name] = np.zeros((num_rows, num_envs, *leaf.shape), leaf.dtype)
                arrays[column].append(self.named[name])
        self.observation_arrays, self.action_arrays = arrays["observations"] + arrays["alive"], arrays["actions"]
        self.alive_arrays = arrays["alive"]
        self.extra_arrays, self.info_arrays = arrays["extras"], arrays["infos"]
        self.final_observation_arrays, self.final_info_arrays = arrays["final_observations"], arrays["final_infos"]
        self.state_arrays = self.observation_arrays + self.info_arrays
        self.shown_arrays = arrays["observations"] + self.info_arrays
        self.final_arrays = self.final_observation_arrays + self.final_info_arrays
        self.take_outcomes(() if counts_only else [self.named[name] for name in outcomes_of(agents)])

    def take_outcomes(self, outcomes: Sequence[np.ndarray]) -> None:
        """Use these arrays for what follows from actions: `columns.outcomes_of`, in that order."""
        self.outcomes, self.results = tuple(outcomes), tuple(outcomes[:3])
        self.agent_rewards = self.outcomes[3 : 2 + len(outcomes) // 3]
        if outcomes:
            self.rewards, self.terminations, self.truncations = self.results


def split_by_rank(array: np.ndarray, partition: Partition) -> list[np.ndarray]:
    """Return views of a (num_rows, num_envs, ...) array as (num_rows, ranks, envs_per_rank, ...), one per range."""
    return [
        array[:, ranks.envs].reshape(len(array), ranks.num_ranks, ranks.envs_per_rank, *array.shape[2:])
        for ranks in partition.ranges
    ]


class SlotUnpacker:
    """A block seen as the slots are, so that the slots of all ranks and envs take a few strided copies.

    `slots` are those of all ranks of `partition`, of shape (num_ranks, num_rows, layout.nbytes), `slot_columns` their
    places in `block.headers`.
    """

    def __init__(
        self, block: Block, layout: SlotLayout, partition: Partition, slots: np.ndarray, slot_columns: slice
    ) -> None:
        columns = layout.columns(slots, layout.capacity)
        # Either side may have some that the other one does not have.
        states = [*columns.observation_arrays, *(column for pair in columns.info_arrays for column in pair)]
        self._observations = _by_rank(zip(block.state_arrays, states, strict=False), partition)
        pairs = [*zip(block.outcomes, columns.outcomes, strict=False)]
        pairs += zip(block.action_arrays, columns.action_arrays, strict=False)
        pairs += zip(block.extra_arrays, columns.extra_arrays, strict=False)
        self._room = slots.shape[1]
        self._of_step: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        headers = slots[:, :, : block.headers[0, 0].nbytes].view(np.int64).swapaxes(0, 1)
        self._results = _by_rank(pairs, partition)
        self._headers = block.headers[:, slot_columns], headers

    def lay_observations(self, row: int, start: int = 0, stop: int = 1) -> None:
        """Lay the observations, and infos, of rows start to stop of the slots into the block, from `row` on."""
        rows = slice(row, row + stop - start)
        for target, source in self._observations:
            target[rows] = source[start:stop]

    def lay_results(self, row: int, num_rows: int = 1) -> None:
        """Lay the first rows of the slots, but for their observations and infos, into `row` and the next ones."""
        rows, is_whole = slice(row, row + num_rows), num_rows == self._room
        for target, source in (self._headers, *self._results):
            target[rows] = source if is_whole else source[:num_rows]

    def lay_step(self, row: int) -> None:
        """Lay all of the slots' first row into one row of a block that has few, but for what headers say."""
        pairs = self._of_step.get(row)
        if pairs is None:  # To make the views takes longer than to copy 64 numbers.
            pairs = [(target[row], source[0]) for target, source in self._observations + self._results]
            self._of_step[row] = pairs
        for target, source in pairs:
            target[...] = source


def _by_rank(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], partition: Partition
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return views of a block's arrays and of the slots' columns, alike in shape: (num_rows, ranks, envs, ...)."""
    return [
        (target, column[ranks.ranks, :, : ranks.envs_per_rank].swapaxes(0, 1))
        for array, column in pairs
        for ranks, target in zip(partition.ranges, split_by_rank(array, partition), strict=True)
    ]
