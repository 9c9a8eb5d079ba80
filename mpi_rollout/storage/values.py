"""What spaces mean for a file: whether it can hold their values, and which values are wrong.

Each leaf of a space is a dataset.  Wrong values are observations outside of their space, and what is not finite.  They
are stored, and counted.  The counts follow from the data and from what the file says of its spaces.  So they are the
same for any number of ranks, after a run was continued, and in `verify`.

Workers import this module: it does not import h5py.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.column_types import is_name, mask_name
from mpi_rollout.core.columns import RESULTS, noun, outcomes_of
from mpi_rollout.core.spaces import AgentsSpace, Bounds, Leaf, Space, first_of, leaves
from mpi_rollout.errors import ContentError, Option, UsageError, spelled
from mpi_rollout.process.console import say
from mpi_rollout.text import one_line

if TYPE_CHECKING:
    import h5py

NONE_WRONG = (0, -1, -1)
OPTIONS = {"out_of_bounds": Option("env_checks", "bounds"), "not_finite": Option("env_checks", "finite")}
Parts: TypeAlias = tuple[Option | str, ...]  # The parts of a message.


def check_storable(observation_space: Space, action_space: Space, way_out: str = "use --no-trajectories") -> None:
    """Refuse spaces that no file can hold: a key cannot be a name in HDF5, or a leaf has no numbers."""
    for name, space in (("observation", observation_space), ("action", action_space)):
        keys = [key for key in _keys(space) if not isinstance(key, str) or "/" in key or not is_name(key)]
        problems = [f"has the key {key!r}, which cannot be a name in HDF5; rename it" for key in keys]
        for leaf in leaves(space):
            if 0 in leaf.shape:
                place = f"its part {leaf.path!r}" if leaf.path else f"it is a {type(space).__name__}"
                problems.append(f"has no numbers to store, {place} of shape {leaf.shape}; leave it out")
        if problems:
            wrapper = f"gymnasium.wrappers.Transform{name.capitalize()}"
            raise UsageError(f"the {name} space {problems[0]} with {wrapper} around the env, or {way_out}")


def _keys(space: Space) -> Iterator[object]:
    """Yield the keys of all Dicts in a space."""
    if isinstance(space, spaces.Dict):
        yield from space.spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for child in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _keys(child)


class ValueCheck:
    """Counts the wrong values of one dataset below /trajectories; messages call one of its values `noun`.

    `counts` says by kind, see `Bounds`, how many rows of an env have such values, and step and env of the first one.
    """

    def __init__(self, name: str, noun: str, bounds: Bounds, first_env: int = 0):
        self.name, self._noun, self._bounds, self._first_env = name, noun, bounds, first_env
        self.counts: dict[str, tuple[int, int, int]] = dict.fromkeys(bounds.kinds, NONE_WRONG)

    def add(self, values: np.ndarray, first_row: int, first_env: int = 0) -> list[Parts]:
        """Count in values of shape (rows, envs, ...); warn of each new kind."""
        if self._bounds.hold(values):
            return []
        warnings = []
        for kind, is_wrong in self._bounds.wrong(values).items():
            rows = is_wrong.reshape(*values.shape[:2], -1).any(axis=2)
            if not rows.any():
                continue
            row, env, *place = first_of(is_wrong)
            count, *first = self.counts[kind]
            here = first_row + row, first_env + env
            if count == 0:
                warnings.append(self._warning(kind, *here, self._bounds.words(kind, values[row, env, *place], place)))
            step, env_index = min((first[0], first[1]), here) if count else here
            self.counts[kind] = count + int(rows.sum()), step, env_index
        return warnings

    def _warning(self, kind: str, step: int, env_index: int, words: str) -> Parts:
        value = f"env {self._first_env + env_index}, step {step}: its {self._noun} is {words}"
        errors = () if self.name.startswith("infos/") else ("; ", OPTIONS[kind], " makes them errors of the env")
        return (f"{value}; such values are stored as they are, and counted in the file", *errors)

    @property
    def wrong(self) -> list[dict[str, str | int]]:
        """What is wrong, as JSON can hold it."""
        return [_wrong(self.name, kind, *count) for kind, count in self.counts.items() if count[0]]


class ValueChecks:
    """Counts the wrong values of a file; ContentError if the root group's attributes describe no space."""

    def __init__(self, attributes: Mapping[str, object]):
        spaces = json.loads(str(attributes["spaces"]))
        described = described_leaves(spaces.get("observation"))
        first_env = int(json.loads(str(attributes["config"])).get("first_env", 0))
        infos = [leaf for leaf, *_ in described_leaves(spaces["info"])] if "info" in spaces else []
        outcomes = outcomes_of(described_agents(spaces.get("observation")))
        infinite = [np.array(-np.inf), np.array(np.inf)]
        looked_at = [(f"observations/{leaf.path}".rstrip("/"), noun(leaf), leaf, ends) for leaf, *ends in described]
        looked_at += [(name, noun(leaf), leaf, infinite) for name, leaf in outcomes.items() if leaf is RESULTS[0]]
        floats = [leaf for leaf in infos if leaf.dtype.kind == "f"]
        looked_at += [(f"infos/{leaf.path}", f"info {leaf.path!r}", leaf, infinite) for leaf in floats]
        checks = [ValueCheck(name, word, Bounds(leaf.dtype, *ends), first_env) for name, word, leaf, ends in looked_at]
        self._never_said = {f"infos/{mask_name(leaf.path)}": leaf.path for leaf in infos}
        self.of = {check.name: check for check in checks if check.counts}
        self._warnings: list[Parts] = []  # Once for each leaf and kind, until they are said.
        self._written: dict[tuple[str, str], tuple[int, int, int]] = {}

    def go_on(self, counts: Mapping[str, Mapping[str, Any]], has_true: Callable[[str], bool]) -> None:
        """Count on from what attributes of the datasets have, and from which masks of infos have a true value."""
        self._never_said = {mask: name for mask, name in self._never_said.items() if not has_true(mask)}
        for name, check in self.of.items():
            for kind in check.counts:
                check.counts[kind] = self._written[name, kind] = tuple(counts[name][kind].tolist())

    def append(self, name: str, rows: np.ndarray, first_row: int) -> None:
        """Count in new rows of a dataset."""
        mask_of = name.removeprefix("final_")
        if mask_of in self._never_said and rows.any():
            del self._never_said[mask_of]
        if name in self.of and len(rows):
            self._warnings += self.of[name].add(rows, first_row)

    def warn_of_silence(self) -> None:
        """Warn, when all is written, of infos that no env has given."""
        if self._never_said:
            names = ", ".join(map(repr, self._never_said.values()))
            noun = "info" if len(self._never_said) == 1 else "infos"
            what = f": no env has given the {noun} {names}; all masks are false"
            self._warnings.append((Option("store_infos"), what))

    def say_warnings(self, spell: Callable[[Option], str]) -> None:
        """Tell the user of wrong values that were counted since."""
        while self._warnings:
            say(f"mpi_rollout: {spelled(self._warnings.pop(0), spell)}\n")

    def write(self, trajectories: "h5py.Group") -> None:
        """Put the counts that are new into attributes of the datasets, which are there since the file was made."""
        for name, check in self.of.items():
            for kind, count in check.counts.items():
                if self._written.get((name, kind)) != count:
                    trajectories[name].attrs.modify(kind, np.array(count, np.int64))
                    self._written[name, kind] = count

    @property
    def wrong(self) -> list[dict[str, str | int]]:
        """What is wrong, as JSON can hold it."""
        return [wrong for check in self.of.values() for wrong in check.wrong]


def wrong_in(name: str, attributes: Mapping[str, object]) -> list[dict[str, str | int]]:
    """Read a dataset's wrong values from its attributes, as `ValueChecks.wrong`; ContentError if damaged."""
    wrong = []
    for kind in OPTIONS:
        value = attributes.get(kind, np.array(NONE_WRONG))
        if not isinstance(value, np.ndarray) or value.shape != (3,) or value.dtype.kind != "i":
            raise ContentError(
                f"the attribute {kind} of trajectories/{name} is {one_line(repr(value))}, it should be three integers"
            )
        if value[0] > 0:
            wrong.append(_wrong(name, kind, *value.tolist()))
    return wrong


def _wrong(name: str, kind: str, count: int, step: int, env_index: int) -> dict[str, str | int]:
    return {"dataset": name, "kind": kind, "count": count, "step": step, "env_index": env_index}


def merged_wrong(parts: Sequence[tuple[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return what is wrong in all files of neighbouring envs; `parts` are the first env of each, and what is wrong."""
    merged: dict[tuple[str, str], tuple[int, int, int]] = {}
    for first_env, wrong in parts:
        for each in wrong:
            key, here = (each["dataset"], each["kind"]), (each["step"], first_env + each["env_index"])
            count, *first = merged.get(key, (0, *here))
            merged[key] = count + each["count"], *min((first[0], first[1]), here)
    return [_wrong(*key, *counted) for key, counted in sorted(merged.items())]


def described_leaves(description: object) -> list[tuple[Leaf, np.ndarray, np.ndarray]]:
    """Return the leaves of a space from what `spaces.describe` says of it, with their bounds.

    A bound is one number for all components, or one for each.  ContentError if it is no space.
    """
    try:
        return list(_leaves(description, ()))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ContentError(f"its attribute spaces describes no space: {description!r:.80}") from error


def _leaves(description: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[Leaf, np.ndarray, np.ndarray]]:
    parts = description.get("subspaces")
    if parts is None:
        leaf = Leaf(keys, np.dtype(description["dtype"]), tuple(description["shape"]))
        low, high = (np.array(description[name], leaf.dtype) for name in ("low", "high"))
        if any(bound.shape not in ((), leaf.shape) for bound in (low, high)):
            raise ValueError("bounds of another shape")
        yield leaf, low, high
        return
    for key, child in parts.items() if isinstance(parts, dict) else enumerate(parts):
        yield from _leaves(child, (*keys, key))


def described_agents(description: object) -> tuple[str, ...]:
    """Return the agents of an env from what `spaces.describe` says of its observations; ContentError if damaged."""
    agents = description.get("agents", []) if isinstance(description, dict) else []
    parts = description.get("subspaces") if isinstance(description, dict) else None
    if agents and (not isinstance(parts, dict) or agents != [*parts]):
        raise ContentError(f"its attribute spaces names no agents: {agents!r:.80}")
    return tuple(agents)


def space_of(description: object) -> Space:
    """Make the Gymnasium space that a file describes; nothing is unpickled.  ContentError if it describes none."""
    described_leaves(description)
    try:
        return _space_of(description)
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ContentError(f"its attribute spaces describes no space: {description!r:.80}") from error


def _space_of(description: Any) -> Space:
    parts = description.get("subspaces")
    if isinstance(parts, dict):
        kind = AgentsSpace if description.get("agents") else spaces.Dict
        return kind({key: _space_of(part) for key, part in parts.items()})
    if parts is not None:
        return spaces.Tuple(tuple(map(_space_of, parts)))
    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    low, high = (np.broadcast_to(np.array(description[name], dtype), shape) for name in ("low", "high"))
    match description["type"]:
        case "Box":
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            # Gymnasium before 1.2 has int64 only, and no such argument.
            of_dtype = {} if dtype == np.int64 else {"dtype": dtype.type}
            return spaces.Discrete(int(high) - int(low) + 1, start=int(low), **of_dtype)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(high.astype(dtype) - low + 1, dtype=dtype.type, start=low)
        case "MultiBinary":
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    raise KeyError(description["type"])
