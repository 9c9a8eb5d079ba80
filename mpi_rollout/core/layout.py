"""How spaces become bytes: leaves, the slots that ranks send, the blocks that are written.

A space is a tree (Dict and Tuple) of leaves, each an array of fixed shape and dtype.  Everything that moves is a
column per leaf, the env axis first.  A *slot* is what one rank sends for one step: its columns packed one behind
the other.  A *block* is columns with a leading time axis.  Both are laid out once, from the spaces.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.partition import Partition
from mpi_rollout.errors import UsageError

ALIGNMENT = 64  # Bytes: a cache line, so that no column of a slot starts amid a word or a SIMD register.


@dataclass(frozen=True)
class Leaf:
    """One array of a space: where it hangs, and its dtype and shape for one env."""

    keys: tuple[str | int, ...]
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        """The name in files and messages, as in Minari: Tuple members are `_index_0`, `_index_1`, ..."""
        return "/".join(f"_index_{key}" if isinstance(key, int) else str(key) for key in self.keys)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def of(self, tree: Any) -> Any:
        """Take this leaf's part out of a nested observation or action."""
        for key in self.keys:
            tree = tree[key]
        return tree


@singledispatch
def leaves(space: spaces.Space, keys: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """The leaves of a space, in the order of its Dict keys and Tuple members.

    Raises
    ------
    UsageError
        The space has a part without a fixed shape.
    """
    place = f" at {'/'.join(map(str, keys))!r}" if keys else ""
    raise UsageError(
        f"{type(space).__name__} spaces have no fixed shape and cannot be gathered, got {space}{place}; "
        "make it a Box, Discrete, MultiDiscrete or MultiBinary with a gymnasium wrapper around the env"
    )


@leaves.register
def _(space: spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary, keys=()):
    return (Leaf(keys, np.dtype(space.dtype), tuple(space.shape)),)


@leaves.register
def _(space: spaces.Dict, keys=()):
    return tuple(leaf for key, child in space.spaces.items() for leaf in leaves(child, (*keys, key)))


@leaves.register
def _(space: spaces.Tuple, keys=()):
    return tuple(leaf for index, child in enumerate(space.spaces) for leaf in leaves(child, (*keys, index)))


def is_castable(got: np.dtype, wanted: np.dtype) -> bool:
    """Tell whether a dtype may become another one: of the same kind, or of a kind that holds it (bool, int, float).

    Integers of any size and sign may become each other, if their values allow it; that is for the caller to check.
    """
    return got == wanted or np.can_cast(got, wanted, "same_kind") or (got.kind in "iu" and wanted.kind in "iu")


def tree_of(space: spaces.Space, arrays: Iterable[Any]) -> Any:
    """Hang one array per leaf where its leaf hangs: the inverse of taking `leaf.of(tree)` for each leaf."""
    return _hang(space, iter(arrays))


def _hang(space: spaces.Space, arrays: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _hang(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_hang(child, arrays) for child in space.spaces)
    return next(arrays)


def rows_of(tree: Any, envs: slice) -> Any:
    """Views of some envs' rows of batched arrays."""
    if isinstance(tree, dict):
        return {key: rows_of(value, envs) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(rows_of(value, envs) for value in tree)
    return tree[envs]


def describe(space: spaces.Space) -> dict[str, Any]:
    """A space as JSON-able data; two spaces are the same for this program if these are equal."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {str(key): describe(child) for key, child in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [describe(child) for child in space.spaces]}
    description = {"type": type(space).__name__, "dtype": str(space.dtype), "shape": list(space.shape)}
    low, high = bounds(space)
    return description | {"low": _short(low), "high": _short(high)}


def bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest value that each component of a leaf may have, both inclusive."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    low = np.asarray(space.start)
    return low, low + np.asarray(count) - 1


def leaf_spaces(space: spaces.Space) -> list[spaces.Space]:
    """The spaces at the leaves, in the order of `leaves`."""
    if isinstance(space, spaces.Dict):
        return [leaf for child in space.spaces.values() for leaf in leaf_spaces(child)]
    if isinstance(space, spaces.Tuple):
        return [leaf for child in space.spaces for leaf in leaf_spaces(child)]
    return [space]


def _short(bound: np.ndarray) -> Any:
    """One number where all are the same (an image's bounds), else nested lists."""
    is_same = bound.size and (bound == bound.flat[0]).all()
    return json.loads(json.dumps(bound.flat[0].item() if is_same else bound.tolist()))


@dataclass(frozen=True)
class Columns:
    """The outcome of one step of some envs: arrays that share their first axis.

    `final_observation_arrays` are there in SAME_STEP mode only, and have a meaning only where an episode has ended;
    `info_arrays` are pairs of values and mask, one per info that a slot carries in a column of its own.
    """

    observations: Any
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    observation_arrays: tuple[np.ndarray, ...]
    final_observation_arrays: tuple[np.ndarray, ...] = ()
    info_arrays: tuple[tuple[np.ndarray, np.ndarray], ...] = ()

    @property
    def results(self) -> tuple[np.ndarray, ...]:
        return self.rewards, self.terminations, self.truncations


RESULTS = (
    Leaf(("rewards",), np.dtype(np.float64), ()),
    Leaf(("terminations",), np.dtype(np.bool_), ()),
    Leaf(("truncations",), np.dtype(np.bool_), ()),
)
OF_ONE = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
HEADER = (  # Of eight bytes each, in the first cache line.
    Leaf(("step_s",), np.dtype(np.float64), ()),  # Seconds that the rank's envs took for this step.
    Leaf(("mark",), np.dtype(np.int64), ()),  # Not 0: there is something that the root must know.
    Leaf(("infos_nbytes",), np.dtype(np.int64), ()),  # Not 0: a message with as many bytes of infos follows.
)
MASK = Leaf((), np.dtype(np.bool_), ())


def is_result(leaf: Leaf) -> bool:
    """Tell whether it is one of `RESULTS` itself: a leaf of an observation may be equal to one."""
    return any(leaf is result for result in RESULTS)


def noun(leaf: Leaf) -> str:
    """What messages call what one env gives: a result, or a leaf of its observation."""
    if is_result(leaf):
        return OF_ONE[leaf.path]
    return f"observation {leaf.path!r}" if leaf.path else "observation"


class SlotLayout:
    """Where the parts of a slot lie, `capacity` rows each, `nbytes` in all.

    Header and results come first, so that a run can keep them in one copy, then observations; final observations
    and infos (of each its values and a mask of the envs that have it) only where a trainer wants them.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        capacity: int,
        has_final_observations: bool = False,
        infos: tuple[Leaf, ...] = (),
    ):
        self.observation_space = observation_space
        self.observations = leaves(observation_space)
        self.final_observations = self.observations if has_final_observations else ()
        self.infos = infos
        masked = tuple(part for leaf in infos for part in (leaf, MASK))
        self._columns = RESULTS + self.observations + self.final_observations + masked
        self.capacity = capacity
        self._offsets, end = [8 * index for index in range(len(HEADER))], ALIGNMENT
        for leaf in self._columns:
            self._offsets.append(end)
            end += -(-capacity * leaf.nbytes // ALIGNMENT) * ALIGNMENT
        self.nbytes = end
        self.head_nbytes = self._offsets[len(HEADER) + len(RESULTS)]

    def header(self, buffer: np.ndarray) -> tuple[np.ndarray, ...]:
        """Views of `step_s`, `mark` and `infos_nbytes`, one element per slot in the buffer."""
        return tuple(
            self._view(buffer, leaf, offset, None) for leaf, offset in zip(HEADER, self._offsets, strict=False)
        )

    def columns(self, buffer: np.ndarray, rows: int) -> Columns:
        """Views of shape (num_slots, rows, ...) of every column."""
        offsets = self._offsets[len(HEADER) :]
        views = [self._view(buffer, leaf, offset, rows) for leaf, offset in zip(self._columns, offsets, strict=True)]
        return self._sort(views)

    def one(self, buffer: np.ndarray, rows: int) -> Columns:
        """The columns of a single slot, as views of shape (rows, ...)."""
        offsets = self._offsets[len(HEADER) :]
        leaves_at = zip(self._columns, offsets, strict=True)
        return self._sort([self._view(buffer[None], leaf, offset, rows)[0] for leaf, offset in leaves_at])

    def _sort(self, views: list[np.ndarray]) -> Columns:
        """Say which view is what."""
        rest = iter(views)
        results = [next(rest) for _ in RESULTS]
        observations = tuple(next(rest) for _ in self.observations)
        final_observations = tuple(next(rest) for _ in self.final_observations)
        infos = tuple((next(rest), next(rest)) for _ in self.infos)
        tree = tree_of(self.observation_space, observations)
        return Columns(tree, *results, observations, final_observations, infos)

    def results(self, heads: np.ndarray) -> list[np.ndarray]:
        """Views of shape (*lead, capacity) of the results in heads of slots, an array (*lead, head_nbytes)."""
        flat = heads.reshape(-1, self.head_nbytes)
        offsets = self._offsets[len(HEADER) : len(HEADER) + len(RESULTS)]
        views = [self._view(flat, leaf, offset, self.capacity) for leaf, offset in zip(RESULTS, offsets, strict=True)]
        return [view.reshape(*heads.shape[:-1], self.capacity) for view in views]

    @staticmethod
    def _view(buffer: np.ndarray, leaf: Leaf, offset: int, rows: int | None) -> np.ndarray:
        num_slots, slot_nbytes = buffer.shape
        inner = np.empty(leaf.shape if rows is None else (rows, *leaf.shape), leaf.dtype)
        shape, strides = (num_slots, *inner.shape), (slot_nbytes, *inner.strides)
        return np.ndarray(shape, leaf.dtype, buffer, offset, strides)


class Block:
    """`num_rows` consecutive steps of all envs: observation t, action t, and what followed it, in row t.

    `named` holds the C-contiguous arrays of shape (num_rows, num_envs, ...) by their path in a file; the tree
    `observations` shares their memory.  `step_s` is (num_rows, num_slots): what the slots of a row say of their time.
    """

    def __init__(
        self, observation_space: spaces.Space, action_space: spaces.Space, num_envs: int, num_slots: int, num_rows: int
    ):
        self.num_rows = num_rows
        self.start = 0  # The step of row 0.
        self.named: dict[str, np.ndarray] = {}
        lead = (num_rows, num_envs)
        self.observation_arrays = self._allocate("observations", leaves(observation_space), lead)
        self.action_arrays = self._allocate("actions", leaves(action_space), lead)
        self.rewards, self.terminations, self.truncations = self._allocate("", RESULTS, lead)
        self.observations = tree_of(observation_space, self.observation_arrays)
        self.step_s = np.zeros((num_rows, num_slots))
        self._space = observation_space
        self._is_single = isinstance(self.observations, np.ndarray)

    def _allocate(self, name: str, group: tuple[Leaf, ...], lead: tuple[int, int]) -> list[np.ndarray]:
        arrays = [np.zeros((*lead, *leaf.shape), leaf.dtype) for leaf in group]
        self.named.update({f"{name}/{leaf.path}".strip("/"): array for leaf, array in zip(group, arrays, strict=True)})
        return arrays

    def observations_of(self, row: int, envs: slice = slice(None)) -> Any:
        """The batched observations of some envs in one row, C-contiguous views of shape (num_envs, ...)."""
        if self._is_single:
            return self.observations[row, envs]
        return tree_of(self._space, (array[row, envs] for array in self.observation_arrays))

    @property
    def results(self) -> tuple[np.ndarray, ...]:
        return self.rewards, self.terminations, self.truncations

    @staticmethod
    def row_nbytes(observation_space: spaces.Space, action_space: spaces.Space, num_envs: int) -> int:
        """Bytes that one step of all envs takes."""
        return num_envs * sum(leaf.nbytes for leaf in leaves(observation_space) + leaves(action_space) + RESULTS)


def split_by_rank(array: np.ndarray, partition: Partition) -> list[np.ndarray]:
    """Views of a (num_rows, num_envs, ...) array as (num_rows, ranks, envs_per_rank, ...), one per run of ranks."""
    return [
        array[:, run.envs].reshape(len(array), run.num_ranks, run.envs_per_rank, *array.shape[2:])
        for run in partition.ranges
    ]
