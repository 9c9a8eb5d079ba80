"""Making this rank's slice of the envs, whatever kind it is: always a `gymnasium.vector.VectorEnv`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.config import RolloutConfig, load_callable
from mpi_rollout.envs.bare import bare_loop, bare_vector_loop, split_actions
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import RolloutError, UsageError
from mpi_rollout.layout import leaves
from mpi_rollout.seeding import episode_seeds, seed_of_slice

EXTRAS = {"ale_py": "atari", "mujoco": "mujoco"}


@dataclass(frozen=True)
class EnvMaker:
    """Makes envs as the configuration says, singly or natively vectorized."""

    config: RolloutConfig

    def __call__(self) -> gymnasium.Env:
        """Make one env.

        Raises
        ------
        UsageError
            It is unknown, lacks a package, or does not take its arguments.
        """
        config = self.config
        if config.env_factory is not None:
            return self._try(load_callable(config.env_factory, "--env-factory"), **config.env_kwargs)
        return self._try(gymnasium.make, config.env, **config.env_kwargs)

    def native(self, num_envs: int) -> VectorEnv:
        """Make one natively vectorized env of `num_envs`."""
        config = self.config
        if config.env is None:
            raise UsageError(
                "--vectorization-mode vector_entry_point needs a registered env; use --env, not --env-factory"
            )
        mode = config.vectorization_mode
        envs = self._try(gymnasium.make_vec, config.env, num_envs, vectorization_mode=mode, **config.env_kwargs)
        leaves(envs.single_observation_space), leaves(envs.single_action_space)  # Or they are refused.
        if envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise UsageError(
                f"{config.env} resets in mode {envs.metadata.get('autoreset_mode')}, expected NEXT_STEP; use sync"
            )
        return envs

    def _try(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = self.config.env or self.config.env_factory
        try:
            return make(*args, **kwargs)
        except RolloutError:
            raise
        except ModuleNotFoundError as error:
            raise UsageError(f"{name}: {str(error).splitlines()[0]}; {_install(str(error))}") from error
        except gymnasium.error.DependencyNotInstalled as error:
            raise UsageError(f"{name}: {error}; {_install(str(error).lower())}") from error
        except gymnasium.error.Error as error:
            raise UsageError(f"--env {name}: {str(error).rstrip('.')}") from error
        except TypeError as error:
            raise UsageError(f"--env-kwargs {self.config.env_kwargs} do not fit {name}: {error}") from error


def _install(text: str) -> str:
    for package, extra in EXTRAS.items():
        if package in text:
            return f"pip install 'mpi_rollout[{extra}]'"
    return "install it, or correct the name before the colon"


def make_slice(config: RolloutConfig, indices: range) -> VectorEnv:
    """Make the envs with these indices."""
    make = EnvMaker(config)
    if config.vectorization_mode == "vector_entry_point":
        return make.native(len(indices))
    seeds = [episode_seeds(config.seed, index) for index in indices]
    return LoopVectorEnv([make] * len(indices), seeds=seeds, first_env_index=indices.start)


def reset_seed(config: RolloutConfig, indices: range) -> int | None:
    """What `reset` of a slice takes: one seed for a native one; none for a loop, which has its episodes' seeds."""
    return seed_of_slice(config.seed, indices) if config.vectorization_mode == "vector_entry_point" else None


def make_bare(config: RolloutConfig, indices: range, actions: list[Any]) -> Callable[[float], float]:
    """Make a second set of the same envs, for measuring the limit: see `envs.bare`.

    Parameters
    ----------
    actions
        Batched actions of these envs, for some steps.
    """
    make = EnvMaker(config)
    if config.vectorization_mode == "vector_entry_point":
        envs = make.native(len(indices))
        return bare_vector_loop(envs, seed_of_slice(config.seed, indices), actions)
    slice_ = LoopVectorEnv([make] * len(indices))
    seeds = [episode_seeds(config.seed, index) for index in indices]
    return bare_loop(slice_, seeds, split_actions(slice_, actions))
