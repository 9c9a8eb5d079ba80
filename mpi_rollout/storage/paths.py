"""Whether spaces can be stored: each of their parts is a dataset, whose path is made of the keys that lead to it."""

from collections.abc import Iterator
from typing import Any

from gymnasium import spaces

from mpi_rollout.core.spaces import leaves
from mpi_rollout.errors import UsageError


def check_storable(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Refuse spaces that no file can hold.

    Raises
    ------
    UsageError
        A key cannot be a name in HDF5, or a part has no numbers.
    """
    for name, space in (("observation", observation_space), ("action", action_space)):
        for key in _keys(space):
            if not _is_name(key):
                raise _not_storable(name, f"has the key {key!r}, which cannot be a name in HDF5; rename it")
        for part in leaves(space):
            if 0 in part.shape:
                place = f"its part {part.path!r}" if part.path else f"it is a {type(space).__name__}"
                raise _not_storable(name, f"has no numbers to store, {place} of shape {part.shape}; leave it out")


def _keys(space: spaces.Space) -> Iterator[Any]:
    """The keys of all Dicts in a space."""
    if isinstance(space, spaces.Dict):
        yield from space.spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _keys(part)


def _is_name(key: Any) -> bool:
    """Tell whether HDF5 takes it as the name of one object."""
    try:
        key.encode()
    except (AttributeError, UnicodeError):
        return False
    return key not in ("", ".", "..") and "/" not in key and "\0" not in key


def _not_storable(name: str, what: str) -> UsageError:
    wrapper = f"gymnasium.wrappers.Transform{name.capitalize()}"
    return UsageError(f"the {name} space {what} with {wrapper} around the env, or use --no-trajectories")
