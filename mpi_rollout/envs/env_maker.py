"""Making envs: from an id, a callable or a list of callables; and what to do where that does not work."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.column_types import MASK_NAME
from mpi_rollout.core.partition import shifted
from mpi_rollout.core.seeding import Reproducibility, episode_seeds, seed_at_first
from mpi_rollout.envs import (
    dm_wrapper,
    kernels,  # noqa: F401  # Registers envs of this project's own.
)
from mpi_rollout.envs.calls import check_calls
from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.envs.faults import ABORT, OnFault, making
from mpi_rollout.envs.infos import MasksInInfos
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.native_makers import SYNC, check_kwargs, checked, of_entry_point, of_envpool, of_factory
from mpi_rollout.envs.single_makers import (
    comm_for,
    make_of_id,
    make_registered,
    of_missing_package,
    of_unknown_id,
    parameters_of,
)
from mpi_rollout.envs.wrapping import WRAPPERS, Wrapper, adapted, name_of, named_wrappers, wrapped
from mpi_rollout.errors import Option, RolloutError, UsageError
from mpi_rollout.exchange.world import claimed_local_size
from mpi_rollout.process.host import library_threads, share_of_cores
from mpi_rollout.process.paths import load_callable
from mpi_rollout.text import first_line

Kwargs = Mapping[str, Any]
EnvFunction = Callable[..., gymnasium.Env]
Env = str | EnvSpec | EnvFunction
Made = TypeVar("Made")
ENV, FACTORY = Option("env"), Option("env_factory")


@dataclass(frozen=True)
class EnvMaker:
    """What makes the env with a given index, or natively vectorized envs.

    `env` is an env id or its spec, or a callable that returns one env, and is given the index if it has a parameter
    `env_index`; or it is a tuple of these, one for each env.  Env 0 is env `first_env` of a larger run: what makes envs
    is given the index there, and seeds follow from it.
    """

    env: Env | tuple[Env, ...]
    kwargs: Kwargs | tuple[Kwargs, ...] = field(default_factory=dict)  # Of every env, or of each one.
    vectorization_mode: str = "sync"
    num_threads: int | None = None  # Of natively vectorized envs on a rank; None is the rank's share of the cores.
    wrappers: tuple[tuple[str, Wrapper], ...] = ()  # With their names in messages, the innermost first.
    asks_masks: bool = False  # Ask a single env's `action_masks`, as sb3-contrib does.
    has_episode_seeds: bool = True  # Single envs of a run are seeded at each reset, not at the first one only.
    first_env: int = 0
    group: EnvGroup | None = None  # The ranks that make each env together, where these are several.

    @property
    def name(self) -> str:
        """The name in messages; the ranks compare it too."""
        return ", ".join(dict.fromkeys(map(name_of, self.env))) if isinstance(self.env, tuple) else name_of(self.env)

    @property
    def is_native(self) -> bool:
        return self.vectorization_mode != "sync"

    def check(self, num_envs: int) -> None:
        """Raise UsageError unless there is a description of each of `num_envs` envs."""
        for name, values in (("env", self.env), ("env_kwargs", self.kwargs)):
            if isinstance(values, tuple) and len(values) != num_envs:
                expected = f"one element for each of the {num_envs} envs"
                raise UsageError(Option(name), f" must have {expected}, got {len(values)}")
        for function in self.env if isinstance(self.env, tuple) else (self.env,):
            if not isinstance(function, str | EnvSpec) and not callable(function):
                raise UsageError(f"envs are made by an env id or a callable, got {function!r}")
            if isinstance(function, str) and function.startswith(":"):
                raise UsageError(ENV, f" must be ID or MODULE:ID, got {function!r}")
            if isinstance(function, str) and ".py:" in function:
                way_out = f"on the command line --env-factory {function}"
                raise UsageError(ENV, f" {function} is the callable of a file, not the id of an env; {way_out}")
        for kwargs in self.kwargs if isinstance(self.kwargs, tuple) else (self.kwargs,):
            if not isinstance(kwargs, Mapping):
                raise UsageError(
                    Option("env_kwargs"), f" must be a dict, or a list of one for each env, got {kwargs!r}"
                )

        if self.wrappers and self.is_native:
            problem = f" are for single envs, got {self.vectorization_mode}; leave them out, or use "
            raise UsageError(WRAPPERS, problem, *SYNC)

    def __call__(self, env_index: int = 0) -> gymnasium.Env:
        """Make the env with this index; UsageError if that cannot be done, or if what was made is no env."""
        make = partial(self.unwrapped, env_index)
        env = make() if self.group is None else self.group.make(self.first_env + env_index, make)
        for name, wrapper in self.wrappers:
            env = wrapped(env, name, wrapper)
        check_calls(env, self.name)
        return MasksInInfos(env) if self.asks_masks and env.has_wrapper_attr("action_masks") else env

    def unwrapped(self, env_index: int) -> gymnasium.Env:
        """Make it without the user's wrappers; where several ranks make it together, this rank's part of it."""
        env = self.env[env_index] if isinstance(self.env, tuple) else self.env
        kwargs = dict(self.kwargs[env_index] if isinstance(self.kwargs, tuple) else self.kwargs)
        if isinstance(env, str | EnvSpec):
            made = _try(name_of(env), kwargs, partial(make_of_id, env, kwargs, self.group))
        else:
            index = {"env_index": self.first_env + env_index} if "env_index" in parameters_of(env) else {}
            given = index | comm_for(env, kwargs, self.group) | kwargs
            made = _try(name_of(env), kwargs, partial(env, **given), FACTORY)
        part = adapted(made, name_of(env))
        if self.group is not None and not self.wrappers:  # The first rank alone sees the wrappers.
            check_calls(part, name_of(env))
        return part

    def functions(self, indices: range) -> list[Callable[[], gymnasium.Env]]:
        """Return one callable for each of the envs with these indices."""
        return [partial(self, index) for index in indices]

    def seeds(self, seed: int, env_index: int) -> Iterator[int | None]:
        """Return the seeds of a single env's resets in a run."""
        index = self.first_env + env_index
        return episode_seeds(seed, index) if self.has_episode_seeds else seed_at_first(seed, index)

    def native(self, indices: range, seed: int = 0) -> NativeVectorEnv:
        """Make the natively vectorized envs with these indices, or raise UsageError."""
        env, kwargs, indices = self.env, self.kwargs, shifted(indices, self.first_env)
        num_threads = self.num_threads or share_of_cores(claimed_local_size())
        if isinstance(kwargs, tuple):
            problem = f" must be the same for all envs with {self.vectorization_mode}, got some for each env; use "
            raise UsageError(Option("env_kwargs"), problem, *SYNC)
        make: Callable[[], NativeVectorEnv]
        if is_of_factory := self.vectorization_mode == "native":
            if isinstance(env, str | EnvSpec | tuple):
                problem = f" native needs a callable that makes the envs of a rank, got {self.name}"
                raise UsageError(
                    Option("vectorization_mode"), problem, "; on the command line, --env-factory names one"
                )
            make = partial(of_factory, env, self.name, kwargs, indices, seed)
        else:
            make = self._registered(kwargs, indices, seed, num_threads)
        with library_threads(num_threads, self.num_threads is not None):
            option = FACTORY if is_of_factory else ENV
            with making(f"envs {indices.start} to {indices.stop - 1}"):
                made = _try(self.name, kwargs, make, option)
            return checked(made, self.name, is_of_factory)

    def _registered(self, kwargs: Kwargs, indices: range, seed: int, num_threads: int) -> Callable[[], NativeVectorEnv]:
        """Return the maker of natively vectorized envs with an id."""
        if not isinstance(self.env, str):
            problem = f" {self.vectorization_mode} needs the id of a registered env, got {self.name}"
            raise UsageError(Option("vectorization_mode"), problem)
        check_kwargs(kwargs)
        if self.vectorization_mode == "envpool":
            return partial(of_envpool, self.env, kwargs, indices, seed, num_threads)
        return partial(make_registered, of_entry_point, self.env, kwargs, indices, num_threads)


def _try(name: str, kwargs: Kwargs, make: Callable[[], Made], option: Option = ENV) -> Made:
    try:
        return make()
    except RolloutError:
        raise
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        way_out = of_missing_package(name, error)
        raise UsageError(option, f" {name}: {first_line(error)}{way_out}") from error
    except gymnasium.error.Error as error:
        raise UsageError(option, f" {name}: {of_unknown_id(name, error)}") from error
    except AttributeError as error:
        if words := dm_wrapper.of_unknown_mujoco(error):
            raise UsageError(option, f" {name}: {words}") from error
        raise
    except TypeError as error:
        if not _is_of_call(error):
            raise
        raise UsageError(Option("env_kwargs"), f" {dict(kwargs)} do not fit {name}: {error}") from error


def _is_of_call(error: TypeError) -> bool:
    """Tell whether a callable refused its arguments: then the error comes from the call, here or in Gymnasium."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    makers = of_factory, make_of_id, gymnasium.make
    return frame.f_globals["__name__"] in (__name__, *(make.__module__ for make in makers))


def maker_of(config: RolloutConfig) -> EnvMaker:
    """Return the maker of a run's envs."""
    env = config.env if config.env_factory is None else load_callable(config.env_factory, FACTORY)
    assert env is not None, "a configuration has an env or an env factory"
    kwargs = tuple(config.env_kwargs) if isinstance(config.env_kwargs, list) else config.env_kwargs
    how = config.vectorization_mode, config.env_threads, named_wrappers(config.wrappers)
    asks_masks = MASK_NAME in config.store_infos
    maker = EnvMaker(env, kwargs, *how, asks_masks, config.episode_seeds, config.first_env)
    maker.check(config.num_envs)
    return maker


def make_slice(
    make: EnvMaker,
    indices: range,
    seed: int | None = None,
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    infos: bool | tuple[str, ...] = False,
    on_fault: OnFault = ABORT,
) -> VectorEnv:
    """Make the envs with these indices; `seed` is that of a run, which seeds their resets."""
    if make.is_native:
        _check_native(make.vectorization_mode, autoreset_mode, on_fault)
        envs = make.native(indices, seed or 0)
        if seed is None and envs.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP:
            raise UsageError(f"{make.name} resets envs in the step of an end; a trainer would not see their last rows")
        return envs
    loop = LoopVectorEnv(
        make.functions(indices),
        seeds=None if seed is None else [make.seeds(seed, index) for index in indices],
        first_env_index=make.first_env + indices.start,
        autoreset_mode=autoreset_mode,
        infos=infos,
        on_fault=on_fault,
    )
    if not make.has_episode_seeds:
        loop.reproducibility, loop.has_episode_seeds = Reproducibility.ENV, False
    return loop


def _check_native(way: str, autoreset_mode: AutoresetMode, on_fault: OnFault) -> None:
    if autoreset_mode != AutoresetMode.NEXT_STEP:
        raise UsageError(f"{way} envs reset in the next step, got autoreset mode {autoreset_mode.value}")
    if on_fault.max_restarts:
        problem = f"{way} envs cannot be restarted one by one when they fail; use "
        raise UsageError(problem, *SYNC)
