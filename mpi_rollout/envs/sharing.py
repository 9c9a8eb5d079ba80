"""Envs that are one and the same object: each would step the other.

Where a rank has a single env, nobody there sees another one.  But a callable that returns what it holds already, such
as `lambda: env`, returns the same for other envs, and that is known before they are made.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from inspect import getclosurevars, isfunction

import gymnasium
from gymnasium.vector import VectorEnv

from mpi_rollout.envs.env_maker import EnvMaker, takes_index
from mpi_rollout.errors import SameEnvError


def check_instances(slices: Iterable[tuple[range, VectorEnv]]) -> None:
    """Raise SameEnvError if two envs of a rank are the same object."""
    owners: dict[int, int] = {}
    for indices, envs in slices:
        for index, env in zip(indices, getattr(envs, "envs", ()), strict=False):
            first = owners.setdefault(_identity(env), index)
            if first != index:
                raise _same(first, index)


class Holding:
    """The envs that the callable of a rank's first env holds before it is called."""

    def __init__(self, make: EnvMaker, num_envs: int, env_index: int):
        self._make, self._num_envs, self._index = make, num_envs, env_index
        self._held = self._held_for(env_index)

    def check(self, envs: VectorEnv) -> None:
        """Raise SameEnvError if the first of these envs is held by what makes another env."""
        identity = _identity(next(iter(getattr(envs, "envs", ())), None))
        for index in range(self._num_envs) if identity in self._held else ():
            if index != self._index and identity in self._held_for(index):
                raise _same(*sorted((index, self._index)))

    def _held_for(self, env_index: int) -> set[int]:
        env = self._make.env
        function = env[env_index] if isinstance(env, tuple) else env
        return set() if takes_index(function) else set(map(_identity, _envs_in(function)))


def _envs_in(function: object) -> list[gymnasium.Env]:
    """Return the envs to which a function refers by itself, by its defaults and by arguments that it is given."""
    values: list[object] = []
    if isinstance(function, partial):
        values = [*function.args, *function.keywords.values(), *_envs_in(function.func)]
    elif isfunction(function):
        with suppress(ValueError):  # It refers to what is not there yet.
            variables = getclosurevars(function)
            values = [*variables.nonlocals.values(), *variables.globals.values(), *(function.__defaults__ or ())]
    return [value for value in values if isinstance(value, gymnasium.Env)]


def _identity(env: object) -> int:
    innermost = getattr(env, "unwrapped", env)
    return id(getattr(innermost, "dm_env", innermost))


def _same(first: int, second: int) -> SameEnvError:
    return SameEnvError(
        f"env {first} and env {second} are the same object; what makes envs must return a new one each time"
    )
