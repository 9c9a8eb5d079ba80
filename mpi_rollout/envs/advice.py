"""What is no env, or does not act as one, and what to do about it: the ways out, for messages."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from mpi_rollout.errors import DataError, shortened

EXTRAS = {"ale_py": "atari", "mujoco": "mujoco"}
# Ids of packages that many use, by how they begin: the module that registers them, and how it is installed.
_REGISTERED_BY = {
    "ALE/": ("ale_py", "'mpi_rollout[atari]'"),
    ("MiniGrid-", "BabyAI-"): ("minigrid", "minigrid"),
    ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-"): ("highway_env", "highway-env"),
    ("Fetch", "HandReach", "HandManip", "Adroit", "AntMaze", "PointMaze", "FrankaKitchen"): (
        "gymnasium_robotics", "gymnasium-robotics",
    ),
    "Panda": ("panda_gym", "panda-gym"),
    "dm_control/": ("shimmy", "'shimmy[dm-control]'"),
}  # fmt: skip


def of_unknown_id(env_id: str, error: gymnasium.error.Error) -> str:
    """What Gymnasium says of an env id that it does not know, and the way out where it has none."""
    words = str(error).partition(". Have you installed")[0].rstrip(".")
    is_unknown = isinstance(error, gymnasium.error.NamespaceNotFound | gymnasium.error.NameNotFound)
    if not is_unknown or ":" in env_id or "Did you mean" in words:
        return words
    for begins, (module, package) in _REGISTERED_BY.items():
        if env_id.startswith(begins):
            is_there = find_spec(module) is not None
            return f"{words}; use {module}:{env_id}" + ("" if is_there else f", after pip install {package}")
    return f"{words}; if a package registers it, put its module before a colon, as in ale_py:ALE/Breakout-v5"


def of_missing_package(name: str, text: str) -> str:
    """What to do about a package that is missing: a name's own, as in PACKAGE:ID, may be misspelt."""
    if "gymnasium-robotics" in text:  # MuJoCo's envs of old versions.
        return "use its latest version"
    for package, extra in EXTRAS.items():
        if package in text:
            return f"pip install 'mpi_rollout[{extra}]'"
    is_named = f"'{name.partition(':')[0]}'" in text
    return "install it, or correct the name before the colon" if is_named else "install it"


def why_no_env(made: Any) -> str:
    """What was made instead of an env, and the way out; "" for an env."""
    if isinstance(made, gymnasium.Env):
        return ""
    if made is None:
        return "None; does it lack a return?"
    if isinstance(made, type):
        return f"the class {made.__name__}; return an instance, {made.__name__}(...)"
    if isinstance(made, VectorEnv):
        return f"the vectorized {type(made).__name__}; return a single env"
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__):
        return f"{type(made).__name__}, an env of the old gym; {of_old_gym()}"
    return f"{shortened(repr(made), 80)}; derive its class from gymnasium.Env"


def of_old_gym() -> str:
    """How an env of the old gym becomes one of Gymnasium."""
    version = str(getattr(sys.modules.get("gym"), "__version__", "0.21"))
    api = "26" if version.startswith("0.26") else "21"
    return f"return shimmy.GymV{api}CompatibilityV0(env=env), after pip install 'shimmy[gym-v{api}]'"


def no_outcome(outcomes: Sequence[Any], first_env_index: int) -> DataError:
    """Name the first env whose step did not return what a step returns."""
    is_good = [isinstance(outcome, tuple | list) and len(outcome) == 5 for outcome in outcomes]
    index = is_good.index(False)
    got = f"{len(outcomes[index])} values" if isinstance(outcomes[index], tuple) else type(outcomes[index]).__name__
    return DataError(
        f"env {first_env_index + index}: its step should return observation, reward, terminated, truncated "
        f"and info, got {got}; return terminated and truncated in the place of done; for an env of gym itself, "
        f"{of_old_gym()}"
    )


def begun(outcome: Any) -> tuple[Any, Any]:
    """The observation and the info of a reset.

    Raises
    ------
    DataError
        It returned something else, as resets of the old gym do.
    """
    if isinstance(outcome, tuple | list) and len(outcome) == 2:
        return outcome[0], outcome[1]
    got = f"{type(outcome).__name__}; return both; for an env of gym itself, {of_old_gym()}"
    raise DataError(f"its reset should return observation and info, got {got}")
