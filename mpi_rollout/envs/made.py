"""What the callables of users have made, as an env with Gymnasium's methods."""

import gymnasium

from mpi_rollout.envs import dm_wrapper
from mpi_rollout.envs.agents import AgentsEnv, is_parallel_env
from mpi_rollout.envs.wrapping import why_no_env
from mpi_rollout.errors import UsageError


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
