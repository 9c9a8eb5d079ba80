"""What envs are given: an action, a seed and options for each, which of them to reset, and calls by name."""

from collections.abc import Callable, Iterable, Sequence
from operator import call, index
from typing import Any, SupportsIndex, TypeVar

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Tree, leaves
from mpi_rollout.errors import UsageError

Info = dict[str, Any]
Reset = tuple[Tree, Info]  # What `reset` of a vector env returns.
Step = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, Info]  # What `step` of a vector env returns.
Values = tuple[Any, ...]  # What an attribute is, or a method returns, of each env: it can be anything.
OptionsOfOne = dict[str, Any] | None
T = TypeVar("T")
Options = OptionsOfOne | list[OptionsOfOne] | tuple[OptionsOfOne, ...]
Seeds = int | Sequence[int | None] | None


def check_spaces(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Raise UsageError for spaces whose values cannot be batched.

    A part has no fixed shape, the observation space is empty, or the action space has an empty Dict or Tuple.
    """
    leaves(action_space)
    if not leaves(observation_space):
        raise UsageError(
            f"the observation space is an empty {type(observation_space).__name__}; give it a member with "
            "gymnasium.wrappers.TransformObservation"
        )
    waiting = [action_space]
    while waiting:
        part = waiting.pop()
        if isinstance(part, spaces.Dict | spaces.Tuple):
            if not len(part.spaces):
                raise UsageError(
                    f"the action space has an empty {type(part).__name__}, which cannot be batched; leave it out with "
                    f"gymnasium.wrappers.TransformAction; got {action_space}"
                )
            waiting += part.spaces.values() if isinstance(part, spaces.Dict) else part.spaces


def action_splitter(space: spaces.Space) -> Callable[[Tree], list[Tree]]:
    """Return a function that splits batched actions into one per env; `space` is that of one env.

    The actions are copies: an env may keep its action, and the caller's array is written again.
    """
    if isinstance(space, spaces.Dict):  # A third of the time of Gymnasium's `iterate`.
        names = tuple(space.spaces)
        split = [action_splitter(part) for part in space.spaces.values()]

        def of_envs(actions: Tree) -> list[Tree]:
            columns = (of_name(actions[name]) for name, of_name in zip(names, split, strict=True))
            return [dict(zip(names, parts, strict=True)) for parts in zip(*columns, strict=True)]

        return of_envs
    if isinstance(space, spaces.Tuple):
        members = [action_splitter(part) for part in space.spaces]
        return lambda actions: [*zip(*map(call, members, actions), strict=True)]
    return list if isinstance(space, spaces.Discrete) else lambda actions: list(actions.copy())


def read_seed(seed: object, num_envs: int) -> int | list[int | None] | None:
    """Return a trainer's seed or seeds as Python's integers, which Gymnasium's generators ask for.

    TypeError or ValueError if a seed is no integer or is negative, or the list does not have one element per env.
    """
    if seed is None:
        return None
    if isinstance(seed, SupportsIndex) and not np.ndim(seed):  # type: ignore[arg-type]  # It takes any object.
        return _read_seed(seed)
    if not isinstance(seed, Iterable) or isinstance(seed, str):
        raise TypeError(f"seed must be a whole number, or a list with one for each of {num_envs} envs, got {seed!r}")
    seeds = [None if element is None else _read_seed(element) for element in seed]
    return list(seed_of_each(seeds, num_envs))


def _read_seed(seed: SupportsIndex) -> int:
    try:
        number = index(seed)
    except TypeError:
        raise TypeError(f"seed must be a whole number, got {seed!r}") from None
    if number < 0:
        raise ValueError(f"seed must be at least 0, got {number}")
    return number


def seed_of_each(seed: Seeds, num_envs: int) -> Sequence[int | None]:
    """Return a seed for each env: none, counted on from one seed, or those of a list; ValueError for a wrong length."""
    if isinstance(seed, int):
        return [seed + index for index in range(num_envs)]
    return one_for_each("seed", seed, num_envs)


def one_for_each(name: str, given: T | Sequence[T], num_envs: int) -> Sequence[T]:
    """Return something for each env: the same for all, or those of a list; ValueError for a wrong length."""
    if not isinstance(given, list | tuple):
        return [given] * num_envs  # type: ignore[list-item]  # No other sequence is given.
    if len(given) != num_envs:
        expected = f"one for all, or a list with one for each of {num_envs} envs"
        raise ValueError(f"{name} must be {expected}, got {len(given)}")
    return given


def take_reset_mask(options: Options, num_envs: int) -> tuple[np.ndarray | None, Options]:
    """Separate `reset_mask` from the other options of `reset`, which are for the envs; the dict is not changed.

    A mask without a True is accepted: it may be a slice of a larger one.  TypeError or ValueError if it is no bool
    array of shape (num_envs,).
    """
    if not isinstance(options, dict) or "reset_mask" not in options:
        return None, options
    mask, name = options["reset_mask"], "options['reset_mask']"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(mask).__name__}; use np.array(mask, dtype=np.bool_)")
    if mask.shape != (num_envs,):
        raise ValueError(f"{name} must have shape ({num_envs},), one for each env, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{name} must have dtype bool, got {mask.dtype}; use mask.astype(np.bool_)")
    return mask, {key: value for key, value in options.items() if key != "reset_mask"}


class CalledByName(VectorEnv):
    """What SyncVectorEnv has besides a `VectorEnv`'s methods: its envs' attributes, and calls of their methods.

    It is `closed` until its constructor is through: Gymnasium before 1.3 closes what is deleted, made or not.
    """

    closed = True

    def call(self, name: str, *args: object, **kwargs: object) -> Values:
        """Call a method of each env, or get an attribute, wherever in its wrappers it is.

        To and from other ranks, arguments and results are pickled: this is not for every step.
        """
        return self.call_some(range(self.num_envs), name, *args, **kwargs)

    def call_some(self, env_indices: Sequence[int], name: str, *args: object, **kwargs: object) -> Values:
        """`call` of these envs only."""
        raise NotImplementedError

    def get_attr(self, name: str) -> Values:
        """Get an attribute of each env."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set an attribute of each env: of all to one value, or of each to its own of a list or tuple."""
        self.set_some(range(self.num_envs), name, values)

    def set_some(self, env_indices: Sequence[int], name: str, values: object) -> None:
        """`set_attr` of these envs only."""
        raise NotImplementedError

    @property  # type: ignore[misc]  # As SyncVectorEnv has it.
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The envs' random generators; of envs on other ranks, copies."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # As SyncVectorEnv has it.
        """The seeds of the envs' random generators."""
        return self.get_attr("np_random_seed")
