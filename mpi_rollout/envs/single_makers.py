"""Making single envs: by an id or a callable, which is given a communicator if it takes one.

And what to do where a package is missing or an id is unknown.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.envs.wrapping import name_of
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.exchange.world import comm_self
from mpi_rollout.text import pip_install

if TYPE_CHECKING:
    from mpi4py import MPI

Made = TypeVar("Made")
BY_NAME = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
Comm = dict[str, "MPI.Intracomm"]  # By the name of the parameter; empty without one.

# What ids and error messages name, and the extra that brings it.
EXTRAS = {"pettingzoo": "pettingzoo", "ale_py": "atari", "mujoco": "mujoco", "shimmy": "dm", "dm_control": "dm"}
EXTRAS |= {"numba": "numba", "torch": "torch"}
HIGHWAY_IDS = ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-")
ROBOTICS_IDS = ("Fetch", "HandReach", "HandManip", "Adroit", "AntMaze", "PointMaze", "FrankaKitchen")
# How ids of well-known packages begin: the module that registers them, and what pip installs.
_REGISTERED_BY: dict[tuple[str, ...], tuple[str, str]] = {
    ("ALE/",): ("ale_py", "[atari]"),
    ("MiniGrid-", "BabyAI-"): ("minigrid", "minigrid"),
    HIGHWAY_IDS: ("highway_env", "highway-env"),
    ROBOTICS_IDS: ("gymnasium_robotics", "gymnasium-robotics"),
    ("Panda",): ("panda_gym", "panda-gym"),
    ("dm_control/",): ("shimmy", "[dm]"),
    ("butterfly/", "classic/", "sisl/"): ("pettingzoo", "[pettingzoo]"),
}


def parameters_of(make: Any) -> Mapping[str, Parameter]:
    """Return the parameters of a callable that may be given by name; callables in C may not say what they take."""
    try:
        parameters = signature(make).parameters
    except (TypeError, ValueError):
        return {}
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in BY_NAME}


def comm_for(make: Any, kwargs: Mapping[str, object], group: EnvGroup | None) -> Comm:
    """Return the communicator for a callable that makes an env: for `comm`, or for the only argument that it needs.

    The second is for an env of several ranks alone: UsageError if it takes no communicator.
    """
    if "comm" in kwargs:
        return {}
    parameters = parameters_of(make)
    if group is None:
        own = parameters.get("comm")  # With another default it is no communicator.
        return {} if own is None or own.default not in (own.empty, None) else {"comm": comm_self()}
    if "comm" in parameters:
        return {"comm": group.comm}
    given = {"env_index", *kwargs}
    needed = [name for name, own in parameters.items() if own.default is own.empty and name not in given]
    if len(needed) != 1:
        raise _no_comm(name_of(make), group)
    return {needed[0]: group.comm}


def _comm_for_id(env: str | EnvSpec, kwargs: Mapping[str, object], group: EnvGroup | None) -> Comm:
    """Return the communicator for an env with an id, if its class or function has a parameter `comm`."""
    if isinstance(env, str) and ":" in env:
        import_module(env.partition(":")[0])
    spec = gymnasium.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else env
    if spec is None or spec.entry_point is None:  # What makes it is not known yet.
        return {} if group is None or "comm" in kwargs else {"comm": group.comm}
    creator = creator_of(spec.entry_point)
    if "comm" in parameters_of(creator):
        return comm_for(creator, kwargs, group)
    if group is not None:
        raise _no_comm(name_of(env), group)
    return {}


def _no_comm(name: str, group: EnvGroup) -> UsageError:
    way_out = f"{name} must take the communicator of an env's ranks, as in def make_env(comm)"
    return UsageError(Option("ranks_per_env", group.comm.size), f" is for envs that are MPI programs: {way_out}")


def creator_of(entry_point: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable of an entry point, which is that or its name."""
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


def make_registered(make: Callable[..., Made], env_id: str | EnvSpec, *arguments: object, **kwargs: Any) -> Made:
    """Make what has an id; import the well-known package that registers it, where that is not done yet."""
    if isinstance(env_id, str) and ":" not in env_id and env_id not in gymnasium.registry:
        modules = [module for prefixes, (module, _) in _REGISTERED_BY.items() if env_id.startswith(prefixes)]
        for module in filter(find_spec, modules):
            import_module(module)
    return make(env_id, *arguments, **kwargs)


def make_of_id(env: str | EnvSpec, kwargs: Mapping[str, Any], group: EnvGroup | None) -> gymnasium.Env:
    """Make a registered env, with a communicator if it takes one."""
    comm = _comm_for_id(env, kwargs, group)
    made = make_registered(_make_single, env, **comm, **kwargs)
    if comm and isinstance(made, gymnasium.Env) and made.unwrapped.spec is not None:
        made.unwrapped.spec.kwargs.pop("comm")  # Specs are copied and stored.
    return made


def _make_single(env_id: str | EnvSpec, **kwargs: Any) -> Any:
    """Make what `gymnasium.make` makes, or the `ParallelEnv` that an id of its registry or PettingZoo's stands for.

    The module before a colon is imported already.
    """
    if isinstance(env_id, str) and env_id not in gymnasium.registry:
        pettingzoo, name = sys.modules.get("pettingzoo"), env_id.rpartition(":")[2]
        if name in getattr(pettingzoo, "parallel_registry", ()):
            try:
                return pettingzoo.make("parallel", name, **kwargs)  # type: ignore[union-attr]
            except Exception as error:  # A package that is missing is the cause of an error of its own.
                raise error.__cause__ if isinstance(error.__cause__, ImportError) else error from None
    try:
        return gymnasium.make(env_id, **kwargs)
    except TypeError as error:
        if "must inherit from the gymnasium.Env class" not in str(error):
            raise
        # It may have made a `ParallelEnv`.
        spec = env_id if isinstance(env_id, EnvSpec) else gymnasium.spec(env_id.rpartition(":")[2])
        return creator_of(spec.entry_point)(**spec.kwargs | kwargs) if spec.entry_point is not None else None


def of_unknown_id(env_id: str, error: gymnasium.error.Error) -> str:
    """Return Gymnasium's message about an unknown env id, with a way out where Gymnasium names none."""
    words = str(error).partition(". Have you installed")[0].rstrip(".")
    module, _, name = env_id.partition(":")
    is_this_id = f"`{name}`" in words  # And not one that a factory of this name asks for.
    if is_this_id and callable(getattr(sys.modules.get(module), name, None)):
        return f"it is a callable of a module, not the id of an env; on the command line --env-factory {env_id}"
    is_unknown = isinstance(error, gymnasium.error.NamespaceNotFound | gymnasium.error.NameNotFound)
    if not is_unknown or ":" in env_id or "Did you mean" in words:
        return words
    for prefixes, (_, package) in _REGISTERED_BY.items():
        if env_id.startswith(prefixes):
            return f"{words}; {pip_install(package)}"
    return f"{words}; if a package registers it, put its module before a colon, as in ale_py:ALE/Breakout-v5"


def of_missing_package(name: str, error: Exception) -> str:
    """Say what to do about a package that cannot be imported; "" where its own words say it.

    It is missing, or lacks something; where the name is PACKAGE:ID, it may be misspelt.
    """
    text = str(error)
    if "gymnasium-robotics" in text:  # MuJoCo's envs of old versions.
        return "; use its latest version"
    if isinstance(error, ModuleNotFoundError | gymnasium.error.DependencyNotInstalled) or ".so" in text:
        return f"; {_how_to_install(name, text)}"
    return "; install a version that has it" if text.startswith("cannot import name") else ""


def _how_to_install(name: str, text: str) -> str:
    imported = text.lower().replace("-", "_")  # ale-py is how it is installed, ale_py how it is imported.
    for package, extra in EXTRAS.items():
        if package in imported:
            return pip_install(f"[{extra}]")
    is_named = f"'{name.partition(':')[0]}'" in text
    return "install it, or correct the name before the colon" if is_named else "install it"
