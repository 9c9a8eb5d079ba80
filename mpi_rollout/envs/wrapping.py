"""What the callables of users give: envs, of Gymnasium or another interface, and the wrappers around each of them."""

import json
from collections.abc import Callable, Sequence

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.vector import VectorEnv

from mpi_rollout.envs import dm_wrapper
from mpi_rollout.envs.agents import AgentsEnv, is_of_pettingzoo
from mpi_rollout.envs.faults import of_old_gym, raised_at
from mpi_rollout.errors import EnvError, Option, UsageError
from mpi_rollout.process.paths import load_callable, misfit
from mpi_rollout.text import shortened, words_of

Wrapper = Callable[[gymnasium.Env], gymnasium.Env]
Wrappers = str | Wrapper | Sequence[str | Wrapper]  # Names with commas between, or some.
WRAPPERS = Option("wrappers")


def wrapped(env: gymnasium.Env, name: str, wrapper: Wrapper) -> gymnasium.Env:
    """Call a wrapper; UsageError if it takes other arguments or returns no env, EnvError if it raises."""
    if why := misfit(wrapper, env):
        way_out = "; give a callable of your own that takes the env alone and calls it"
        raise UsageError(WRAPPERS, f" {name} takes other arguments than an env ({why}){way_out}")
    try:
        made = wrapper(env)
    except Exception as error:
        raise EnvError(WRAPPERS, f" {name} raises {words_of(error)}{raised_at(error)}") from error
    if what := why_no_env(made):
        raise UsageError(WRAPPERS, f" {name} must return an env, got {what}")
    return made


def named_wrappers(given: Wrappers | None) -> tuple[tuple[str, Wrapper], ...]:
    """Load what `--wrappers` names, or `connect` was given, with their names; UsageError if one is not callable."""
    listed = given.split(",") if isinstance(given, str) and given else given or ()
    return tuple(map(_named_wrapper, listed if isinstance(listed, list | tuple) else [listed]))


def _named_wrapper(wrapper: str | Wrapper) -> tuple[str, Wrapper]:
    if isinstance(wrapper, str):
        return wrapper, load_callable(wrapper, WRAPPERS)
    if not callable(wrapper):
        raise UsageError(WRAPPERS, f" must be callables, or their names, got {wrapper!r}")
    return name_of(wrapper), wrapper


def adapted(made: object, name: str) -> gymnasium.Env:
    """Return an env that `name` has made with Gymnasium's methods; UsageError if it is none."""
    if dm_wrapper.is_dm_env(made):
        return dm_wrapper.wrapped(made, name)
    if is_of_pettingzoo(made, "ParallelEnv"):
        return AgentsEnv(made, name)
    if what := why_no_env(made):
        raise UsageError(f"{name} must return an env, got {what}")
    assert isinstance(made, gymnasium.Env)
    return made


def why_no_env(made: object) -> str:
    """Say what was made instead of an env, and the way out; "" for an env."""
    if isinstance(made, gymnasium.Env):
        missing = [name for name in ("observation_space", "action_space") if not hasattr(made, name)]
        return f"one without {missing[0]}; set self.{missing[0]} in its __init__" if missing else ""
    if made is None:
        return "None; does it lack a return?"
    if isinstance(made, type):
        return f"the class {made.__name__}; return an instance, {made.__name__}(...)"
    if is_of_pettingzoo(made, "AECEnv"):
        return "a pettingzoo.AECEnv, whose agents act in turn; return pettingzoo.utils.conversions.aec_to_parallel(env)"
    if isinstance(made, VectorEnv):
        return f"the vectorized {type(made).__name__}; return a single env"
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__):
        return f"{type(made).__name__}, an env of the old gym; {of_old_gym()}"
    return f"{shortened(repr(made), 80)}; derive its class from gymnasium.Env"


def describe_spec(spec: EnvSpec | None) -> str:
    """Return a spec as JSON for readers of a file, as `EnvSpec.to_json` has it; a class, for example, by its name."""
    try:
        values = {name: value for name, value in vars(spec).items() if name not in ("namespace", "name", "version")}
        return json.dumps(values, skipkeys=True, default=_described)
    except Exception:  # There is no spec, or an env has its own idea of it.
        return ""


def _described(value: object) -> object:
    return vars(value) if isinstance(value, WrapperSpec) else name_of(value) if callable(value) else repr(value)


def name_of(env: str | EnvSpec | Callable[..., object]) -> str:
    """Return an env's id, or the module and the name of a callable."""
    if isinstance(env, str | EnvSpec):
        return env if isinstance(env, str) else env.id
    return f"{env.__module__}:{getattr(env, '__qualname__', type(env).__qualname__)}"
