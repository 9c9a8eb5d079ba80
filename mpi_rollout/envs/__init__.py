"""Making this rank's slice of the envs, whatever kind it is: always a `gymnasium.vector.VectorEnv`."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.config import RolloutConfig, load_callable
from mpi_rollout.envs.bare import bare_loop, bare_vector_loop, split_actions
from mpi_rollout.envs.faults import ABORT, OnFault
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import RolloutError, UsageError
from mpi_rollout.layout import leaves
from mpi_rollout.seeding import episode_seeds, seed_of_slice

EXTRAS = {"ale_py": "atari", "mujoco": "mujoco"}


@dataclass(frozen=True)
class EnvMaker:
    """Makes envs, singly or natively vectorized.

    Parameters
    ----------
    env
        An env id, or a callable that returns one env.
    """

    env: str | Callable[..., gymnasium.Env]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vectorization_mode: str = "sync"

    @property
    def name(self) -> str:
        """How messages call it, and how ranks tell that they mean the same."""
        if isinstance(self.env, str):
            return self.env
        return f"{self.env.__module__}:{getattr(self.env, '__qualname__', type(self.env).__qualname__)}"

    @property
    def is_native(self) -> bool:
        return self.vectorization_mode == "vector_entry_point"

    def __call__(self) -> gymnasium.Env:
        """Make one env.

        Raises
        ------
        UsageError
            It is unknown, lacks a package, or does not take its arguments.
        """
        make = partial(gymnasium.make, self.env) if isinstance(self.env, str) else self.env
        return self._try(make, **self.kwargs)

    def native(self, num_envs: int) -> VectorEnv:
        """Make one natively vectorized env of `num_envs`."""
        if not isinstance(self.env, str):
            raise UsageError(
                "--vectorization-mode vector_entry_point needs a registered env; use --env, not --env-factory"
            )
        mode = self.vectorization_mode
        envs = self._try(gymnasium.make_vec, self.env, num_envs, vectorization_mode=mode, **self.kwargs)
        leaves(envs.single_observation_space), leaves(envs.single_action_space)  # Or they are refused.
        if envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise UsageError(
                f"{self.env} resets in mode {envs.metadata.get('autoreset_mode')}, expected NEXT_STEP; use sync"
            )
        return envs

    def _try(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = self.name
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
            raise UsageError(f"--env-kwargs {dict(self.kwargs)} do not fit {name}: {error}") from error


def _install(text: str) -> str:
    for package, extra in EXTRAS.items():
        if package in text:
            return f"pip install 'mpi_rollout[{extra}]'"
    return "install it, or correct the name before the colon"


def maker_of(config: RolloutConfig) -> EnvMaker:
    """What makes the envs of a run."""
    env = config.env if config.env_factory is None else load_callable(config.env_factory, "--env-factory")
    return EnvMaker(env, config.env_kwargs, config.vectorization_mode)


def make_slice(
    make: EnvMaker,
    indices: range,
    seed: int | None = None,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    infos: bool | tuple[str, ...] = False,
    on_fault: OnFault = ABORT,
) -> VectorEnv:
    """Make the envs with these indices.

    Parameters
    ----------
    seed
        Of a run, whose episodes have seeds of their own; None leaves them to the envs' generators.
    """
    if make.is_native:
        if autoreset_mode != AutoresetMode.NEXT_STEP:
            raise UsageError(
                f"vector_entry_point envs reset in the next step, got autoreset mode {autoreset_mode.value}"
            )
        if on_fault.max_restarts:
            raise UsageError(
                "vector_entry_point envs cannot be made anew singly when they fail; use --vectorization-mode sync"
            )
        return make.native(len(indices))
    seeds = None if seed is None else [episode_seeds(seed, index) for index in indices]
    first = indices.start
    return LoopVectorEnv(
        [make] * len(indices), seeds=seeds, first_env_index=first, autoreset_mode=autoreset_mode, infos=infos,
        on_fault=on_fault,
    )  # fmt: skip


def make_bare(make: EnvMaker, indices: range, seed: int, actions: list[Any]) -> Callable[[float], float]:
    """Make a second set of the same envs, for measuring the limit: see `envs.bare`.

    Parameters
    ----------
    actions
        Batched actions of these envs, for some steps.
    """
    if make.is_native:
        return bare_vector_loop(make.native(len(indices)), seed_of_slice(seed, indices), actions)
    slice_ = LoopVectorEnv([make] * len(indices))
    return bare_loop(slice_, [episode_seeds(seed, index) for index in indices], split_actions(slice_, actions))


@dataclass(frozen=True)
class EnvFacts:
    """What envs say of themselves: spaces of a single one, and for whoever holds them on another rank the rest.

    `share_generator`: they take one seed for all of a rank, as natively vectorized envs do.
    """

    observation_space: spaces.Space
    action_space: spaces.Space
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    share_generator: bool

    @classmethod
    def of(cls, envs: VectorEnv) -> "EnvFacts":
        spaces_of_one = envs.single_observation_space, envs.single_action_space
        is_native = not isinstance(envs, LoopVectorEnv)
        return cls(*spaces_of_one, envs.spec, dict(envs.metadata), envs.render_mode, is_native)

    def portable(self) -> "EnvFacts":
        """The same, with what cannot be pickled left out: spec and metadata can hold any callable.

        Raises
        ------
        UsageError
            A space cannot be pickled.
        """
        try:
            pickle.dumps((self.observation_space, self.action_space))
        except Exception as error:
            raise UsageError(
                f"spaces are sent to all ranks and must be picklable, got {self.observation_space} and "
                f"{self.action_space}: {type(error).__name__}: {error}"
            ) from error
        metadata = {name: value for name, value in self.metadata.items() if can_be_pickled(value)}
        return replace(self, spec=self.spec if can_be_pickled(self.spec) else None, metadata=metadata)


def can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
