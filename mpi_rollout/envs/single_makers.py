"""Packages that envs come from: which ids they register, and what to do where one is missing or an id is unknown."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from mpi_rollout.text import pip_install

# What ids and error messages name, and the extra that brings it.
EXTRAS = {"pettingzoo": "pettingzoo", "ale_py": "atari", "mujoco": "mujoco", "shimmy": "dm", "dm_control": "dm"}
EXTRAS |= {"CartPoleCUDA": "cuda", "numba": "numba", "torch": "torch"}
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


def import_registering(env_id: str) -> None:
    """Import the well-known package that registers an id, if it is installed."""
    modules = [module for prefixes, (module, _) in _REGISTERED_BY.items() if env_id.startswith(prefixes)]
    for module in filter(find_spec, modules):
        import_module(module)


def make_single(env_id: str | EnvSpec, **kwargs: Any) -> Any:
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
        make = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        return make(**spec.kwargs | kwargs) if make is not None else None


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


def of_missing_package(name: str, text: str) -> str:
    """Say what to do about a missing package; where the name is PACKAGE:ID, the package may be misspelt."""
    if "gymnasium-robotics" in text:  # MuJoCo's envs of old versions.
        return "use its latest version"
    imported = text.replace("-", "_")  # ale-py is how it is installed, ale_py how it is imported.
    for package, extra in EXTRAS.items():
        if package in imported or (package == "CartPoleCUDA" and package in name):
            return pip_install(f"[{extra}]")
    is_named = f"'{name.partition(':')[0]}'" in text
    return "install it, or correct the name before the colon" if is_named else "install it"
