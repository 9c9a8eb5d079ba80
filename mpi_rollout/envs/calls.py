"""Whether envs take the calls of the program: their signatures say it, when an env is made."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple, TypeAlias

import gymnasium

from mpi_rollout.envs.agents import AgentsEnv
from mpi_rollout.envs.dm_wrapper import DmEnv
from mpi_rollout.errors import UsageError

Arguments: TypeAlias = tuple[Sequence[object], Mapping[str, object]]  # By place and by name.
LIBRARIES = "gymnasium", "pettingzoo"  # Their wrappers call the env inside with seed and options.


class Calls(NamedTuple):
    """How a method is called, and what to say where it does not take that."""

    method: str
    all: tuple[Arguments, ...]
    takes: str
    way_out: str


GIVEN: Arguments = (), {"seed": 0, "options": None}
BARE: Arguments = (), {}
INNER_RESET = Calls("reset", (GIVEN,), "seed and options by name", "def reset(self, *, seed=None, options=None)")
# Without arguments an episode begins that nobody asked for, as in Gymnasium's vector envs.
RESET = INNER_RESET._replace(all=(GIVEN, BARE), takes="seed and options by name, with defaults")
DM_RESET = Calls("reset", (BARE,), "no argument", "def reset(self)")
STEP = Calls("step", (((None,), {}),), "one action", "def step(self, action)")


def check_calls(env: gymnasium.Env, name: str) -> None:
    """Raise UsageError if reset or step of an env that `name` has made cannot be called as they will be."""
    for layer, reset in layers(env):
        for calls in (reset, STEP):
            if got := misfit(layer, calls):
                what = f"{name}: {calls.method} of {type(layer).__qualname__} must take {calls.takes}, got {got}"
                raise UsageError(f"{what}; write {calls.way_out}")


def layers(env: Any) -> Iterator[tuple[Any, Calls]]:
    """Yield an env and those inside of it, with the calls of their resets, as far as these are known.

    Nobody knows what a wrapper of the user calls: it may be there for an env with another signature.
    """
    yield env, RESET
    while isinstance(env, gymnasium.Wrapper) and _is_of_library(env):
        env = env.env
        yield env, INNER_RESET
    if isinstance(env, DmEnv):
        yield env.dm_env, DM_RESET
    elif isinstance(env, AgentsEnv):
        env = env.parallel_env
        yield env, INNER_RESET
        while "env" in vars(env) and _is_of_library(env):
            env = env.env
            yield env, INNER_RESET


def _is_of_library(env: Any) -> bool:
    return type(env).reset.__module__.partition(".")[0] in LIBRARIES


def misfit(env: Any, calls: Calls) -> str:
    """Return the signature of a method that does not take all of its calls, else ""; code in C may have none."""
    try:
        own = signature(getattr(env, calls.method))
    except (TypeError, ValueError, AttributeError):
        return ""
    for arguments, by_name in calls.all:
        try:
            own.bind(*arguments, **by_name)
        except TypeError:
            shown = ", ".join(["self", *map(str, own.parameters.values())])
            return f"{calls.method}({shown})"
    return ""
