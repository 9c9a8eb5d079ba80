"""What makes envs is given their index and their communicator, if it has parameters for them."""

from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.envs.wrapping import name_of
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.exchange.world import comm_self

if TYPE_CHECKING:
    from mpi4py import MPI

BY_NAME = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
Comm = dict[str, "MPI.Intracomm"]  # By the name of the parameter; empty without one.


def parameters_of(make: Any) -> Mapping[str, Parameter]:
    """Return the parameters of a callable that may be given by name; callables in C may not say what they take."""
    try:
        parameters = signature(make).parameters
    except (TypeError, ValueError):
        return {}
    return {name: parameter for name, parameter in parameters.items() if parameter.kind in BY_NAME}


def takes(make: Any, name: str) -> bool:
    """Tell whether a callable has a parameter of this name."""
    return name in parameters_of(make)


def comm_for(make: Any, kwargs: Mapping[str, object], group: EnvGroup | None) -> Comm:
    """Return the communicator for a callable that makes an env: for `comm`, or for the only argument that it needs.

    The second is for an env of several ranks alone: UsageError if it takes no communicator.
    """
    if "comm" in kwargs:
        return {}
    if group is None:
        own = parameters_of(make).get("comm")  # With another default it is no communicator.
        return {} if own is None or own.default not in (own.empty, None) else {"comm": comm_self()}
    if takes(make, "comm"):
        return {"comm": group.comm}
    given = {"env_index", *kwargs}
    needed = [name for name, own in parameters_of(make).items() if own.default is own.empty and name not in given]
    if len(needed) != 1:
        raise _no_comm(name_of(make), group)
    return {needed[0]: group.comm}


def comm_for_id(env: str | EnvSpec, kwargs: Mapping[str, object], group: EnvGroup | None) -> Comm:
    """Return the communicator for an env with an id, if its class or function has a parameter `comm`."""
    if isinstance(env, str) and ":" in env:
        import_module(env.partition(":")[0])
    spec = gymnasium.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else env
    point = None if spec is None else spec.entry_point
    if point is None:  # What makes it is not known yet.
        return {} if group is None or "comm" in kwargs else {"comm": group.comm}
    creator = load_env_creator(point) if isinstance(point, str) else point
    if group is not None and not takes(creator, "comm"):
        raise _no_comm(name_of(env), group)
    return comm_for(creator, kwargs, group) if takes(creator, "comm") else {}


def _no_comm(name: str, group: EnvGroup) -> UsageError:
    way_out = f"{name} must take the communicator of an env's ranks, as in def make_env(comm)"
    return UsageError(Option("ranks_per_env", group.comm.size), f" is for envs that are MPI programs: {way_out}")
