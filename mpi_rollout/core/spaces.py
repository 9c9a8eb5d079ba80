"""How spaces become arrays: their leaves, the bounds of values, and the action masks of an env.

A space is a tree (Dict and Tuple) of leaves.  Each leaf is an array of fixed shape and dtype.

An action mask says which actions an env allows in its next step; it is the info `action_mask`, as Gymnasium's
`sample(mask=...)` takes it.  In memory it is bits.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from mpi_rollout.errors import Option, UsageError

Space: TypeAlias = spaces.Space[Any]
Tree: TypeAlias = Any  # Arrays in dicts and tuples, as the space nests them; a single array for a leaf.
WrongValues: TypeAlias = Mapping[str, Any]  # The wrong values of a dataset by kind: how many, and where the first is.
Keys = tuple[str | int, ...]
T = TypeVar("T")

NUM_ULPS = 4  # Scaling a value from -1 to 1 to its bounds takes four operations in floating point.
FEW = 1000  # With fewer values the number of NumPy calls matters.
MOST_MASK_BITS = 2**16  # Slots have room for them, used or not.


@dataclass(frozen=True)
class Leaf:
    """One array of a space: its place in the tree, and its dtype and shape for one env."""

    keys: Keys
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def path(self) -> str:
        """The name in files and messages, as in Minari: Tuple members are `_index_0`, `_index_1`, ..."""
        return "/".join(f"_index_{key}" if isinstance(key, int) else str(key) for key in self.keys)

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def of(self, tree: Tree) -> Tree:
        """Take this leaf's part out of a nested observation or action."""
        for key in self.keys:
            tree = tree[key]
        return tree


class AgentsSpace(spaces.Dict):
    """The spaces of the agents of an env, by name and in this order: of their observations, or of their actions."""

    def __init__(self, of_agents: Mapping[str, Space]) -> None:
        super().__init__(OrderedDict(of_agents))  # Gymnasium sorts the names of any other mapping.


def agents_of(observation_space: Space) -> tuple[str, ...]:
    """Return the names of an env's agents; none where the env itself is the only one."""
    return tuple(observation_space.spaces) if isinstance(observation_space, AgentsSpace) else ()


def _parts(space: Space, keys: Keys = ()) -> Iterator[tuple[Keys, Space]]:
    """Yield the spaces at the leaves and their places, in the order of Dict keys and Tuple members."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        yield keys, space
        return
    children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    for key, child in children:
        yield from _parts(child, (*keys, key))


def leaf_spaces(space: Space) -> list[Space]:
    """Return the spaces at the leaves, in the order of `leaves`."""
    return [part for _, part in _parts(space)]


def leaves(space: Space) -> tuple[Leaf, ...]:
    """Return the leaves of a space, in the order of its Dict keys and Tuple members.

    UsageError if a part of the space has no fixed shape.
    """
    return tuple(_leaf(keys, part) for keys, part in _parts(space))


def _leaf(keys: Keys, space: Space) -> Leaf:
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return Leaf(keys, np.dtype(space.dtype), tuple(space.shape or ()))
    place = f" at {'/'.join(map(str, keys))!r}" if keys else ""
    problem = f"{type(space).__name__} spaces have no fixed shape and cannot be gathered, got {space}{place}"
    raise UsageError(f"{problem}; ", *_way_out(space))


def _way_out(space: Space) -> tuple[str | Option, ...]:
    """Name a wrapper that makes something else of a part, or leaves it out."""
    if type(space).__module__.startswith("minigrid."):
        return Option("wrappers", "minigrid.wrappers:ImgObsWrapper"), " leaves all out but the image"
    numbers = "make it a Box, Discrete, MultiDiscrete or MultiBinary with a gymnasium wrapper around the env"
    if not space.is_np_flattenable:
        return (f"leave it out, or {numbers}",)
    flatten = Option("wrappers", "gymnasium.wrappers:FlattenObservation")
    return flatten, f" makes one Box of all observations; or {numbers}"


def tree_of(space: Space, arrays: Iterable[T]) -> Tree:
    """Put one array per leaf in the place of its leaf: the inverse of taking `leaf.of(tree)` for all leaves."""
    arrays = iter(arrays)  # An iterator gives itself: members of a tree take one after the other.
    if isinstance(space, spaces.Dict):
        return {key: tree_of(child, arrays) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(tree_of(child, arrays) for child in space.spaces)
    return next(arrays)


def map_tree(function: Callable[..., Tree], *trees: Tree) -> Tree:
    """Call a function for each leaf, with the arrays that some trees have there; return the tree of its results."""
    if isinstance(trees[0], dict):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(map_tree(function, *members) for members in zip(*trees, strict=True))
    return function(*trees)


def describe(space: Space) -> dict[str, object]:
    """Return a space as JSON-able data; two spaces are the same for this program if these are equal."""
    if isinstance(space, spaces.Dict):
        of_agents = {"agents": [*agents]} if (agents := agents_of(space)) else {}
        subspaces = {str(key): describe(child) for key, child in space.spaces.items()}
        return {"type": "Dict", "subspaces": subspaces, **of_agents}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [describe(child) for child in space.spaces]}
    low, high = (_shortest(bound) for bound in bounds_of(space))
    shape = list(space.shape or ())
    return {"type": type(space).__name__, "dtype": str(space.dtype), "shape": shape, "low": low, "high": high}


def describe_leaves(group: Iterable[Leaf]) -> dict[str, object]:
    """Return leaves that are of no space as `describe` has a Dict space; they have no bounds."""
    unbounded = {"type": "Box", "low": 0, "high": 0}
    described = {leaf.path: {**unbounded, "dtype": str(leaf.dtype), "shape": list(leaf.shape)} for leaf in group}
    return {"type": "Dict", "subspaces": described}


def _shortest(bound: np.ndarray) -> object:
    """Return one number where all are the same (an image's bounds), else nested lists."""
    is_same = bound.size and (bound == bound.flat[0]).all()
    return json.loads(json.dumps(bound.flat[0].item() if is_same else bound.tolist()))


def is_castable(got: np.dtype, wanted: np.dtype) -> bool:
    """Tell whether a dtype may become another one: of the same kind, or of a kind that holds it (bool, int, float).

    Integers of any size and sign may become each other, if their values allow it.  The caller checks the values.
    """
    return got == wanted or np.can_cast(got, wanted, "same_kind") or (got.kind in "iu" and wanted.kind in "iu")


def in_native_order(array: np.ndarray) -> np.ndarray:
    """Return an array with this machine's order of bytes: a copy, where it has the other one, with the same values."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def bounds_of(space: Space) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest value of each component of a leaf, both inclusive."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    if isinstance(space, spaces.Discrete):
        low, count = np.asarray(space.start), np.asarray(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        low, count = np.asarray(space.start), np.asarray(space.nvec)
    else:
        raise TypeError(f"{space} is not the space of a leaf")
    return low, low + count - 1


def nearest_to_zero(space: Space) -> Tree:
    """Return the value of a space that is nearest to zero, as a tree of arrays."""
    parts = leaf_spaces(space)
    return tree_of(space, [np.clip(np.zeros(part.shape or (), part.dtype), *bounds_of(part)) for part in parts])


def rounding(low: np.ndarray, high: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the distance from its bounds that rounding may give a float."""
    largest = np.maximum(*(np.where(np.isfinite(bound), np.abs(bound), 0) for bound in (low, high)))
    with np.errstate(over="ignore"):  # Beyond the largest float there is only infinity.
        return np.asarray(NUM_ULPS * np.spacing(largest, dtype=dtype))


class Bounds:
    """Tells which values of a leaf are wrong: "not_finite" (NaN and infinity), or else "out_of_bounds".

    `low` and `high` are inclusive, of the leaf's dtype, and of its shape or one number for all components.  `kinds` are
    the ways in which values of this dtype can be wrong: none for an image of bytes from 0 to 255.
    """

    def __init__(self, dtype: np.dtype, low: np.ndarray, high: np.ndarray) -> None:
        self._is_float = dtype.kind == "f"
        self.low, self.high = self._low, self._high = np.asarray(low, dtype), np.asarray(high, dtype)
        self._shape = np.broadcast_shapes(self.low.shape, self.high.shape)
        if self._is_float:
            is_bounded = np.isfinite(self.low).any() or np.isfinite(self.high).any()
            slack = rounding(self.low, self.high, dtype).astype(np.float64)
            with np.errstate(over="ignore"):
                self._low, self._high = self.low - slack, self.high + slack
        else:
            least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            is_bounded = (self.low > least).any() or (self.high < most).any()
        self.kinds = ("out_of_bounds",) * bool(is_bounded) + ("not_finite",) * self._is_float
        is_uniform = self.low.size > 0 and all((bound == bound.flat[0]).all() for bound in (self.low, self.high))
        self._ends = (self._low.flat[0].item(), self._high.flat[0].item()) if is_uniform else None

    def hold(self, values: np.ndarray) -> bool:
        """Tell whether all values, an array of shape (rows, ...), are right.  A row is one leaf or several.

        Large arrays are read in two passes, as fast as memory can be read.
        """
        if not self.kinds or values.size == 0:
            return True
        if values.size <= FEW:
            is_inside = ((values >= self._low) & (values <= self._high)).all()  # False for NaN.
            return bool(is_inside) and (not self._is_float or bool(np.isfinite(values).all()))
        with np.errstate(invalid="ignore"):  # Among values with a NaN, the smallest and the largest are NaN.
            if self._ends is not None:
                low, high = values.min().item(), values.max().item()
                is_inside = low >= self._ends[0] and high <= self._ends[1]
            else:
                rows = values.reshape(len(values), -1)
                low, high = (ends.reshape(-1, *self._shape) for ends in (rows.min(axis=0), rows.max(axis=0)))
                is_inside = ((low >= self._low) & (high <= self._high)).all()
        return bool(is_inside) and (not self._is_float or bool(np.isfinite([low, high]).all()))

    def wrong(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Return which values are wrong: for each of `kinds` an array of bools with the values' shape."""
        is_finite = np.isfinite(values)
        is_outside = is_finite & ((values < self._low) | (values > self._high))
        wrong = {"not_finite": ~is_finite, "out_of_bounds": is_outside}
        return {kind: wrong[kind] for kind in self.kinds}

    def words(self, kind: str, value: object, place: Sequence[int]) -> str:
        """Say what is wrong with a value; `place` is the index of its component."""
        at = f" at {[*place]}" if place else ""
        if kind == "not_finite":
            return f"{value}{at}, which is not finite"
        low, high = (bound[tuple(place)] if bound.shape else bound for bound in (self.low, self.high))
        return f"{value}{at}, outside of its bounds {low} to {high}"


def first_of(wrong: np.ndarray) -> list[int]:
    """Return the index of the first True.  There must be one.

    `np.argwhere` would list all of them: for images that are wrong in every byte, 32 times their memory and more.
    """
    return [int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape)]


def wrong_values_text(datasets: Sequence[WrongValues]) -> str:
    """Return a text about wrong values of a file, which `storage.values` has counted for each dataset and kind."""
    texts = []
    for wrong in datasets:
        group, _, leaf = wrong["dataset"].partition("/")
        noun, whose = (group.removesuffix("s"), "its") if wrong["count"] == 1 else (group, "their")
        name = f"{wrong['count']:,} {noun}" + (f" {leaf!r}" if leaf else "")
        what = f"outside of {whose} space" if wrong["kind"] == "out_of_bounds" else "not finite"
        texts.append(f"{name} {what} (first: env {wrong['env_index']}, step {wrong['step']:,})")
    return ", ".join(texts)


def mask_sizes(space: Space) -> list[int]:
    """Return the number of actions of each component that has a mask; [] for spaces without masks."""
    sizes = []
    if isinstance(space, spaces.Discrete):
        sizes = [int(space.n)]
    elif isinstance(space, spaces.MultiDiscrete):
        sizes = [int(size) for size in space.nvec.flat]
    return sizes if sum(sizes) <= MOST_MASK_BITS else []


def set_spaces(envs: VectorEnv, num_envs: int, observation_space: Space, action_space: Space) -> None:
    """Give a vector env its number of envs, the spaces of one of them, and those of all."""
    envs.num_envs, envs.single_observation_space, envs.single_action_space = num_envs, observation_space, action_space
    envs.observation_space = batch_space(observation_space, num_envs)
    envs.action_space = batch_space(action_space, num_envs)
