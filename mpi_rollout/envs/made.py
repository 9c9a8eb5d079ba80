"""What the callables of users have made: an env, or something else."""

import gymnasium
from gymnasium.vector import VectorEnv

from mpi_rollout.envs import dm_wrapper
from mpi_rollout.envs.agents import AgentsEnv, is_aec_env, is_parallel_env
from mpi_rollout.envs.faults import of_old_gym
from mpi_rollout.errors import UsageError
from mpi_rollout.text import shortened


def adapted(made: object, name: str) -> gymnasium.Env:
    """Return an env that `name` has made with Gymnasium's methods; UsageError if it is none."""
    if dm_wrapper.is_dm_env(made):
        return dm_wrapper.wrapped(made, name)
    if is_parallel_env(made):
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
    if is_aec_env(made):
        return "a pettingzoo.AECEnv, whose agents act in turn; return pettingzoo.utils.conversions.aec_to_parallel(env)"
    if isinstance(made, VectorEnv):
        return f"the vectorized {type(made).__name__}; return a single env"
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__):
        return f"{type(made).__name__}, an env of the old gym; {of_old_gym()}"
    return f"{shortened(repr(made), 80)}; derive its class from gymnasium.Env"
