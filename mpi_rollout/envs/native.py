"""Natively vectorized envs: one object that steps all envs of a rank at once.

They come from a vector entry point that is registered with Gymnasium, from EnvPool, or from a factory of the user's.
Each is adapted to what the program asks of envs: it resets in the next step, it is seeded by the seed of the run, and
it says what it promises about its random numbers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.seeding import episode_seeds, seed_of_slice
from mpi_rollout.core.spaces import leaves, set_spaces
from mpi_rollout.envs.inputs import Reset
from mpi_rollout.envs.pool import make_pool
from mpi_rollout.envs.rollout import Rollout
from mpi_rollout.envs.seeded_episodes import SEEDS_31_BITS, SeededEpisodes
from mpi_rollout.errors import Option, UsageError

Make = Callable[[int], VectorEnv]  # By the seed of the run.
NEEDED = "num_envs", "single_observation_space", "single_action_space"  # Of a factory's envs.
MASKED_RESETS = [0, 12, 1]  # The first ale-py whose resets of some envs do not hang.
SYNC = Option("vectorization_mode"), " sync"
GIVEN_BY_THE_RUN: dict[str, tuple[str | Option, ...]] = {
    "num_envs": ("it is the rank's share of ", Option("num_envs")),
    "seed": ("it comes from --seed, or in a trainer from reset(seed=...)",),
    "first_env": ("each rank has its own",),
    "batch_size": ("all envs of a rank are stepped at once",),
}
STEP_SINGLE_ENVS = "step single envs, with vectorization_mode='sync'"


class NativeVectorEnv(VectorEnv):
    """Natively vectorized envs as the program steps them.

    Parameters
    ----------
    envs
        What was made.
    seed_for
        What `envs.reset(seed=...)` is given for a seed of the run.

    Attributes
    ----------
    reproducibility
        What they promise.  Those that promise EPISODE take "episodes" among the options of `reset`: the numbers
        (num_envs,) of the episodes to begin.
    """

    def __init__(
        self, envs: VectorEnv, reproducibility: Reproducibility, seed_for: Callable[[int], Any] = lambda seed: seed
    ) -> None:
        self.reproducibility, self._seed_for = reproducibility, seed_for
        self._take(envs)

    def _take(self, envs: VectorEnv) -> None:
        self._envs = envs
        self.metadata, self.spec = envs.metadata, envs.spec
        set_spaces(self, envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self.render_mode = getattr(envs, "render_mode", None)
        self.step = envs.step  # type: ignore[method-assign]  # Called in each step, without a detour.
        if isinstance(envs, Rollout):  # From Python 3.12 on `isinstance` does not ask `__getattr__`.
            self.rollout, self.last_observations = envs.rollout, envs.last_observations

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Reset:
        given = {} if seed is None else {"seed": self._seed_for(seed)}
        return self._envs.reset(**given, options=options)

    def compile_steps(self, has_observations: bool) -> None:
        """Have envs that compile their steps do it now, before any clock runs.

        Parameters
        ----------
        has_observations
            Somebody reads them.
        """
        if hasattr(self._envs, "compile_steps"):
            self._envs.compile_steps(has_observations)

    def render(self) -> Any:
        try:
            frames = self._envs.render()
        except NotImplementedError:  # By Gymnasium's class.
            frames = None
        if frames is None:
            what = f"{type(self._envs.unwrapped).__name__} has no frames; if it can render, make it with"
            raise UsageError(f"{what} env_kwargs={{'render_mode': 'rgb_array'}}; else {STEP_SINGLE_ENVS}")
        return frames

    def call(self, name: str, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """Call a method, or get an attribute, of each env, if these envs have a method for that."""
        return self._method_of_all("call")(name, *args, **kwargs)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each env, if these envs have a method for that."""
        self._method_of_all("set_attr")(name, values)

    def _method_of_all(self, name: str) -> Callable[..., Any]:
        method = getattr(self._envs, name, None)
        if method is None:
            what = f"{type(self._envs.unwrapped).__name__} steps its envs as one and has no method {name}"
            raise AttributeError(f"{what}; give it one, as Gymnasium's SyncVectorEnv has it, or {STEP_SINGLE_ENVS}")
        return method

    def close(self, **kwargs: Any) -> None:
        self._envs.close(**kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._envs, name)


class SeededWhenMade(NativeVectorEnv):
    """Envs that take their seed when they are made: another seed makes them again."""

    def __init__(self, envs: VectorEnv, make: Make, seed: int, reproducibility: Reproducibility) -> None:
        self._make, self._seed, self._is_new = make, seed, True
        super().__init__(envs, reproducibility)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Reset:
        if seed is not None and not (self._is_new and seed == self._seed):
            self._envs.close()
            self._seed = seed
            self._take(self._make(seed))
        self._is_new = False
        return self._envs.reset(options=options)


def of_entry_point(env_id: str, kwargs: Mapping[str, Any], indices: range, num_threads: int) -> NativeVectorEnv:
    """Make envs by a vector entry point.

    One with a parameter `first_env` gets the index of the slice's first env, and then promises what its attribute
    `reproducibility` says.  ALE's get threads, and a seed for each episode or env.  Others share a generator.
    """
    options = dict(kwargs)
    parameters = _parameters_of(env_id)
    is_ale = env_id.rpartition(":")[2].startswith("ALE/")
    if "first_env" in parameters:
        options["first_env"] = indices.start
    elif is_ale:
        options.setdefault("num_threads", num_threads)
    has_episode_seeds = is_ale and takes_episode_seeds(options.pop("episode_seeds", None), version("ale-py"))
    envs = gymnasium.make_vec(env_id, len(indices), vectorization_mode="vector_entry_point", **options)
    if has_episode_seeds:
        return NativeVectorEnv(SeededEpisodes(envs, indices), Reproducibility.EPISODE)
    if is_ale:
        return NativeVectorEnv(envs, Reproducibility.ENV, lambda seed: np.array(env_seeds(seed, indices), np.int32))
    promised = promised_by(envs.unwrapped, env_id)
    if promised == Reproducibility.SLICE:
        return NativeVectorEnv(envs, Reproducibility.SLICE, lambda seed: seed_of_slice(seed, indices))
    return NativeVectorEnv(envs, promised)


def promised_by(envs: VectorEnv, name: str) -> Reproducibility:
    """Return what envs say of their random numbers; UsageError if it is no `Reproducibility`."""
    promised = getattr(envs, "reproducibility", Reproducibility.SLICE)
    try:
        return Reproducibility(promised)
    except ValueError as error:
        allowed = ", ".join(Reproducibility)
        raise UsageError(f"{name}: the attribute reproducibility must be one of {allowed}, got {promised!r}") from error


def takes_episode_seeds(wanted: bool | None, ale_version: str) -> bool:
    """Tell whether the episodes of ALE's envs are to have seeds of their own.

    Each then costs a second reset, for which ALE loads its ROM again: 0.08 s, as long as 250 steps of an env.

    Parameters
    ----------
    wanted
        The argument `episode_seeds`; None takes them where this version can reset envs one by one.
    """
    can = [int(number) for number in re.findall(r"\d+", ale_version)[:3]] >= MASKED_RESETS
    if wanted and not can:
        what = f": episode_seeds needs ale-py {'.'.join(map(str, MASKED_RESETS))} or later, got {ale_version}"
        raise UsageError(Option("env_kwargs"), what)
    return can if wanted is None else bool(wanted)


def _parameters_of(env_id: str) -> Mapping[str, object]:
    """Return the parameters of a vector entry point; none where it does not say."""
    module, _, registered = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        entry_point = gymnasium.spec(registered).vector_entry_point
        if entry_point is None:
            raise UsageError(Option("env"), f" {env_id} has no vectorized version registered; use ", *SYNC)
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        return signature(creator).parameters
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, AttributeError):
        return {}  # What makes the envs says it better.


def of_factory(
    factory: Callable[..., Any], name: str, kwargs: Mapping[str, Any], indices: range, seed: int
) -> NativeVectorEnv:
    """Make envs by a factory of the user's: `factory(env_indices, seed) -> VectorEnv`.

    Raises
    ------
    UsageError
        It returns something else than a VectorEnv of so many envs.
    """

    def make(seed: int) -> VectorEnv:
        envs = factory(indices, seed, **kwargs)
        if not isinstance(envs, VectorEnv):
            raise UsageError(f"{name} must return a gymnasium.vector.VectorEnv, got {type(envs).__name__}")
        for attribute in NEEDED:
            if getattr(envs, attribute, None) is None:
                raise UsageError(f"{name} must return envs with an attribute {attribute}, got none")
        if envs.num_envs != len(indices):
            raise UsageError(f"{name} must return {len(indices)} envs for these indices, got {envs.num_envs}")
        return SeededEpisodes(envs, indices, seed) if getattr(envs, "takes_episode_seeds", False) else envs

    made = make(seed)
    return SeededWhenMade(made, make, seed, promised_by(made, name))


def of_envpool(task: str, kwargs: Mapping[str, Any], indices: range, seed: int, num_threads: int) -> NativeVectorEnv:
    """Make a pool of EnvPool's; each env has a seed of its own."""

    def make(seed: int) -> VectorEnv:
        return make_pool(task, kwargs, env_seeds(seed, indices), num_threads)

    return SeededWhenMade(make(seed), make, seed, Reproducibility.ENV)


def env_seeds(seed: int, indices: range) -> list[int]:
    """Return a seed of 31 bits for each env, the same whatever the slice."""
    return [next(episode_seeds(seed, index)) & SEEDS_31_BITS for index in indices]


def check_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments of natively vectorized envs that the program gives, or that do not fit how it steps them.

    EnvPool ends the process for some of them.

    Raises
    ------
    UsageError
        The message says what to use instead.
    """
    for name, way_out in GIVEN_BY_THE_RUN.items():
        if name in kwargs:
            raise UsageError(Option("env_kwargs"), f" cannot have {name}, got {kwargs[name]!r}: ", *way_out)
    num_threads = kwargs.get("num_threads", 1)
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise UsageError(Option("env_kwargs"), f": num_threads must be a whole number from 1 on, got {num_threads!r}")


def checked(envs: NativeVectorEnv, name: str, is_of_factory: bool) -> NativeVectorEnv:
    """Refuse natively vectorized envs that the program cannot step.

    Raises
    ------
    UsageError
        Their spaces have no fixed shape, or they do not begin their next episode in the step after an end; those of a
        factory may do so in the same step, if they do not promise EPISODE.
    """
    leaves(envs.single_observation_space), leaves(envs.single_action_space)
    metadata = envs.metadata
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    is_same_step = mode == AutoresetMode.SAME_STEP and envs.reproducibility != Reproducibility.EPISODE
    if mode == AutoresetMode.NEXT_STEP or (is_same_step and is_of_factory):
        return envs
    got = f"envs of {name} must begin their next episode in the step after an end, got " + (
        'no metadata["autoreset_mode"]' if mode is None else f'metadata["autoreset_mode"] {mode}'
    )
    if is_of_factory:
        raise UsageError(f"{got}; have the factory make such envs, which say AutoresetMode.NEXT_STEP")
    raise UsageError(f"{got}; leave autoreset_mode out of ", Option("env_kwargs"), ", or use ", *SYNC)
