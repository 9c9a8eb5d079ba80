"""The table of columns: what is kept of each step of an env, and how.

Whoever lays out, sends, stores, checks, reads or exports the columns of a step follows `TABLE`.  A new column is one
more row of it, and a line where its values come from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any

import numpy as np

from mpi_rollout.core.column_types import mask_name, read_type
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import UsageError


class Rows(Enum):
    """Which rows a column has."""

    STEPS = "one for each step"
    STATES = "one for what was before each step, and one for what came after the last"
    ENDS = "one for each step, of zeros where no episode ends"


@dataclass(frozen=True)
class StoredColumn:
    """A row of the table: one array, or an array for each leaf of a space, each info or each extra."""

    name: str  # The name of the array, or the first part of the arrays' names, below /trajectories.
    rows: Rows = Rows.STEPS
    described_as: str = ""  # The name of the arrays in a file's attribute `spaces`; "" where `leaf` describes them.
    leaf: Leaf | None = None  # What the array is where it is the same for all envs; the envs' ranks then fill it.
    in_runs: bool = True  # And not in recordings alone.


ALIVE = Leaf(("alive",), np.dtype(np.bool_), ())  # Of an agent: it acts in the next step.
ALL_AGENTS = "__all__"  # In the place of an agent's name, as RLlib has it: what an env with agents gives as a whole.


def _result(name: str, dtype: type) -> StoredColumn:
    return StoredColumn(name, leaf=Leaf((name,), np.dtype(dtype), ()))


TABLE = {
    column.name: column
    for column in (
        StoredColumn("observations", Rows.STATES, "observation"),
        StoredColumn("actions", described_as="action"),
        StoredColumn("extras", described_as="extra"),
        StoredColumn("infos", Rows.STATES, "info"),
        StoredColumn("final_observations", Rows.ENDS, "observation", in_runs=False),
        StoredColumn("final_infos", Rows.ENDS, "info", in_runs=False),
        _result("rewards", np.float64),
        _result("terminations", np.bool_),
        _result("truncations", np.bool_),
        StoredColumn("alive", Rows.STATES, leaf=ALIVE),
    )
}
# The columns that `step` of an env returns besides observations and infos.
RESULTS = tuple(column.leaf for column in TABLE.values() if column.leaf is not None and column.leaf is not ALIVE)
OF_ONE = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}


def result_name(name: str, agents: Sequence[str]) -> str:
    """Return the path of one of `RESULTS` below /trajectories: an env with agents has one for each agent, too."""
    return f"{name}/{ALL_AGENTS}" if agents else name


def outcomes_of(agents: Sequence[str]) -> dict[str, Leaf]:
    """Return what follows from an action, by path: `RESULTS`, then the rewards of all agents, then their ends."""
    of_all = {result_name(leaf.path, agents): leaf for leaf in RESULTS}
    return of_all | {f"{leaf.path}/{agent}": leaf for leaf in RESULTS for agent in agents}


def stored_leaves(
    described: Mapping[str, Sequence[Leaf]], is_recording: bool, agents: Sequence[str]
) -> dict[str, dict[str, Leaf]]:
    """Return the arrays of each column that a file has: by the column's name, then by their own.

    `described` has the leaves by the names of `StoredColumn.described_as`; infos are without their masks.
    """
    by_ranks = outcomes_of(agents) | {f"{ALIVE.path}/{agent}": ALIVE for agent in agents}
    stored: dict[str, dict[str, Leaf]] = {}
    for column in TABLE.values():
        if not (is_recording or column.in_runs):
            continue
        if column.leaf is not None:
            stored[column.name] = {name: leaf for name, leaf in by_ranks.items() if leaf is column.leaf}
            continue
        leaves = described.get(column.described_as, ())
        leaves = with_masks(leaves) if column.described_as == "info" else leaves
        stored[column.name] = {f"{column.name}/{leaf.path}".rstrip("/"): leaf for leaf in leaves}
    return stored


def column_of(name: str) -> StoredColumn:
    """Return the row of the table that an array with this name belongs to."""
    return TABLE[name.partition("/")[0]]


def has_last_row(name: str) -> bool:
    """Tell whether an array has one row more than there are steps: for what came after the last one."""
    return column_of(name).rows is Rows.STATES


def is_result(leaf: Leaf) -> bool:
    """Tell whether a leaf is one of `RESULTS` itself: a leaf of an observation may be equal to one."""
    return any(leaf is result for result in RESULTS)


def noun(leaf: Leaf) -> str:
    """Return the name of a leaf in messages: a result, or a part of the observation."""
    if is_result(leaf):
        return OF_ONE[leaf.path]
    return f"observation {leaf.path!r}" if leaf.path else "observation"


def typed_leaves(types: Mapping[str, object]) -> tuple[Leaf, ...]:
    """Return the columns of names with types, see `core.column_types`; UsageError for what is no type."""
    columns = []
    for name, kind in types.items():
        if not isinstance(name, str):
            raise UsageError(f"{name!r} must be a name with a dtype such as int, float or uint8")
        try:
            columns.append(Leaf(tuple(name.split("/")), *read_type(kind)))
        except ValueError as error:
            raise UsageError(f"{name!r} {error}") from error
    return tuple(columns)


def with_masks(infos: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Return the columns of infos: the values of each, and which envs have it."""
    masks = [Leaf((*leaf.keys[:-1], mask_name(str(leaf.keys[-1]))), np.dtype(np.bool_), ()) for leaf in infos]
    return tuple(column for pair in zip(infos, masks, strict=True) for column in pair)


def values_of(infos: Mapping[str, Any], columns: Iterable[Leaf], envs: slice | np.ndarray) -> Iterator[np.ndarray]:
    """Yield what some envs have said, of the typed infos of all envs: an array for each column, or one 0."""
    for leaf in columns:
        found: Any = reduce(lambda inner, key: inner.get(key, {}), map(str, leaf.keys), infos)
        yield found[envs] if isinstance(found, np.ndarray) else np.zeros((), leaf.dtype)
