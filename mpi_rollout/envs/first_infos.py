"""What the envs of a run say at first: from it follows which infos `--store-infos all` stores."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.info_columns import types_in
from mpi_rollout.core.info_types import Types
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.core.spaces import MASK_NAME
from mpi_rollout.envs.inputs import Info
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import EnvError, RolloutError, SignalInterrupt, words_of


def first_types(envs: VectorEnv, seed: int, env_index: int) -> tuple[Types, dict[str, str]]:
    """Return the types of what the first env of a slice says in its first reset and step, and what is no number.

    The envs are reset again when the run begins, with the seeds that they have then.

    Raises
    ------
    EnvError
        The env has failed.
    """
    try:
        infos = _of_one(envs, seed, env_index) if isinstance(envs, LoopVectorEnv) else _of_all(envs, seed)
        return types_in(infos)
    except (RolloutError, SignalInterrupt):
        raise
    except Exception as error:
        raise EnvError(
            f"env {env_index}: --store-infos all looks at its first infos, and it fails: {words_of(error)}; "
            "name the infos that are wanted"
        ) from error


def _of_one(envs: LoopVectorEnv, seed: int, env_index: int) -> list[Info]:
    env = envs.envs[0]
    _, first = env.reset(seed=next(episode_seeds(seed, env_index)))
    *_, second = env.step(_some_action(env.action_space, seed, first.get(MASK_NAME)))
    return [first, second]


def _of_all(envs: VectorEnv, seed: int) -> list[Info]:
    _, first = envs.reset(seed=seed)
    *_, second = envs.step(_some_action(envs.action_space, seed))
    return [_of_first(infos, envs.num_envs) for infos in (first, second)]


def _some_action(space: spaces.Space, seed: int, mask: Any = None) -> Any:
    own = deepcopy(space)  # The env may draw from its own one.
    own.seed(seed)
    try:
        return own.sample(mask)
    except Exception:  # What is no mask of this space is told elsewhere.
        return own.sample()


def _of_first(infos: Mapping[str, Any], num_envs: int) -> Info:
    """Return the info of one env, for each name the first that has it."""
    info: Info = {}
    for name, value in infos.items():
        if name.startswith("_") and name[1:] in infos:
            continue
        if isinstance(value, dict):
            info[name] = _of_first(value, num_envs)
            continue
        has = np.flatnonzero(np.broadcast_to(infos.get(f"_{name}", True), num_envs))
        is_of_each = isinstance(value, np.ndarray) and value.shape[:1] == (num_envs,)
        if len(has):
            info[name] = value[has[0]] if is_of_each else value
    return info
