"""Making this rank's slice of the envs, whatever kind it is: always a `gymnasium.vector.VectorEnv`."""

import json
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import leaves
from mpi_rollout.core.seeding import episode_seeds, seed_of_slice
from mpi_rollout.envs.advice import of_missing_package, of_unknown_id, why_no_env
from mpi_rollout.envs.bare import bare_loop, bare_vector_loop, split_actions
from mpi_rollout.envs.faults import ABORT, OnFault
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import Field, RolloutError, UsageError, first_line, words_of
from mpi_rollout.process.loading import load_callable


@dataclass(frozen=True)
class EnvMaker:
    """Makes the env with a given index, or natively vectorized envs.

    Parameters
    ----------
    env
        An env id, or a callable that returns one env, or a tuple of callables, one for each env.  A callable with a
        parameter `env_index` is given the index.
    kwargs
        The keyword arguments of every env, or a tuple of those of each env.
    """

    env: str | Callable[..., gymnasium.Env] | tuple[Callable[..., gymnasium.Env], ...]
    kwargs: Mapping[str, Any] | tuple[Mapping[str, Any], ...] = field(default_factory=dict)
    vectorization_mode: str = "sync"

    @property
    def name(self) -> str:
        """How messages call what makes the envs, and how ranks tell that they mean the same."""
        return ", ".join(dict.fromkeys(map(_name, self.env))) if isinstance(self.env, tuple) else _name(self.env)

    @property
    def is_native(self) -> bool:
        return self.vectorization_mode == "vector_entry_point"

    def check(self, num_envs: int) -> None:
        """Raise UsageError unless every one of so many envs is described."""
        for name, values in (("env_fns", self.env), ("env_kwargs", self.kwargs)):
            if isinstance(values, tuple) and len(values) != num_envs:
                raise UsageError(
                    Field(name), f" must have one element for each of the {num_envs} envs, got {len(values)}"
                )  # fmt: skip
        for function in self.env if isinstance(self.env, tuple) else (self.env,):
            if not isinstance(function, str) and not callable(function):
                raise UsageError(f"envs are made by an env id or a callable, got {function!r}")
            if isinstance(function, str) and function.startswith(":"):
                raise UsageError(Field("env"), f" must be ID or MODULE:ID, got {function!r}")
        for kwargs in self.kwargs if isinstance(self.kwargs, tuple) else (self.kwargs,):
            if not isinstance(kwargs, Mapping):
                raise UsageError(Field("env_kwargs"), f" must be a dict, or a list of one for each env, got {kwargs!r}")

    def __call__(self, env_index: int = 0) -> gymnasium.Env:
        """Make the env with this index.

        Raises
        ------
        UsageError
            It is unknown, lacks a package, or does not take its arguments; or what was made is no env.
        """
        env = self.env[env_index] if isinstance(self.env, tuple) else self.env
        kwargs = dict(self.kwargs[env_index] if isinstance(self.kwargs, tuple) else self.kwargs)
        if isinstance(env, str):
            return _try(env, kwargs, partial(gymnasium.make, env, **kwargs))
        index = {"env_index": env_index} if _takes_index(env) else {}
        made = _try(_name(env), kwargs, partial(env, **index | kwargs))
        if what := why_no_env(made):
            raise UsageError(f"{_name(env)} must return an env, got {what}")
        return made

    def each(self, indices: range) -> list[Callable[[], gymnasium.Env]]:
        """One callable for each of the envs with these indices."""
        return [partial(self, index) for index in indices]

    def native(self, num_envs: int) -> VectorEnv:
        """Make one natively vectorized env of `num_envs`."""
        env, kwargs, mode = self.env, self.kwargs, self.vectorization_mode
        if not isinstance(env, str):
            raise UsageError(
                Field("vectorization_mode"), f" vector_entry_point needs the id of a registered env, got {self.name}"
            )
        if isinstance(kwargs, tuple):
            raise UsageError(
                Field("env_kwargs"), " must be the same for all envs with vector_entry_point, got some for each env; "
                "use ", Field("vectorization_mode"), " sync",
            )  # fmt: skip
        make = partial(gymnasium.make_vec, env, num_envs, vectorization_mode=mode, **kwargs)
        envs = _try(env, kwargs, make)
        leaves(envs.single_observation_space), leaves(envs.single_action_space)  # Or they are refused.
        if envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise UsageError(
                f"{self.env} resets in mode {envs.metadata.get('autoreset_mode')}, expected NEXT_STEP; use sync"
            )
        return envs


def _try(name: str, kwargs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    try:
        return make()
    except RolloutError:
        raise
    except ImportError as error:
        raise UsageError(
            Field("env"), f" {name}: {first_line(error)}; {of_missing_package(name, str(error))}"
        ) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(Field("env"), f" {name}: {error}; {of_missing_package(name, str(error).lower())}") from error
    except gymnasium.error.Error as error:
        raise UsageError(Field("env"), f" {name}: {of_unknown_id(name, error)}") from error
    except TypeError as error:
        if not _is_of_call(error):
            raise
        raise UsageError(Field("env_kwargs"), f" {dict(kwargs)} do not fit {name}: {error}") from error


def _is_of_call(error: TypeError) -> bool:
    """Whether a callable did not take its arguments: then the error is the caller's, here or in `gymnasium.make`."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"] in (__name__, gymnasium.make.__module__)


def _name(env: str | Callable[..., Any]) -> str:
    if isinstance(env, str):
        return env
    return f"{env.__module__}:{getattr(env, '__qualname__', type(env).__qualname__)}"


def _takes_index(make: Callable[..., Any]) -> bool:
    """Whether a callable has a parameter `env_index`; those of C code may not tell."""
    try:
        parameter = signature(make).parameters.get("env_index")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def maker_of(config: RolloutConfig) -> EnvMaker:
    """What makes the envs of a run."""
    env = config.env if config.env_factory is None else load_callable(config.env_factory, "--env-factory")
    kwargs = tuple(config.env_kwargs) if isinstance(config.env_kwargs, list) else config.env_kwargs
    maker = EnvMaker(env, kwargs, config.vectorization_mode)
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
                "vector_entry_point envs cannot be made anew singly when they fail; use ",
                Field("vectorization_mode"),
                " sync",
            )
        return make.native(len(indices))
    seeds = None if seed is None else [episode_seeds(seed, index) for index in indices]
    return LoopVectorEnv(
        make.each(indices), seeds=seeds, first_env_index=indices.start, autoreset_mode=autoreset_mode, infos=infos,
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
    slice_ = LoopVectorEnv(make.each(indices))
    return bare_loop(slice_, [episode_seeds(seed, index) for index in indices], split_actions(slice_, actions))


@dataclass(frozen=True)
class EnvFacts:
    """What envs say of themselves: spaces of a single one, and for whoever holds them on another rank the rest.

    `share_generator`: they take one seed for all of a rank, as natively vectorized envs do.  `described_spec`: see
    `describe_spec`.
    """

    observation_space: spaces.Space
    action_space: spaces.Space
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    share_generator: bool
    described_spec: str

    @classmethod
    def of(cls, envs: VectorEnv) -> "EnvFacts":
        spaces_of_one = envs.single_observation_space, envs.single_action_space
        is_native = not isinstance(envs, LoopVectorEnv)
        spec = describe_spec(envs.spec)
        return cls(*spaces_of_one, envs.spec, dict(envs.metadata), envs.render_mode, is_native, spec)

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
                f"{self.action_space}: {words_of(error)}"
            ) from error
        metadata = {name: value for name, value in self.metadata.items() if can_be_pickled(value)}
        return replace(self, spec=self.spec if can_be_pickled(self.spec) else None, metadata=metadata)


def describe_spec(spec: EnvSpec | None) -> str:
    """A spec as JSON, as `EnvSpec.to_json` has it; what JSON has no word for, such as a class, by its name.

    It is for readers of a file.  No env is made of it.
    """
    try:
        values = {name: value for name, value in vars(spec).items() if name not in ("namespace", "name", "version")}
        return json.dumps(values, skipkeys=True, default=_described)
    except Exception:  # There is none, or an env has its own idea of it.
        return ""


def _described(value: Any) -> Any:
    if isinstance(value, WrapperSpec):
        return vars(value)
    return _name(value) if callable(value) else repr(value)


def can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
