"""Making natively vectorized envs: by a vector entry point of Gymnasium, by EnvPool, or by a factory of the user."""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.seeding import Reproducibility, episode_seeds, seed_of_slice
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.native import NativeVectorEnv, PoolVectorEnv, SeededEpisodes, SeededWhenMade
from mpi_rollout.envs.players import PlayersVectorEnv
from mpi_rollout.envs.single_makers import creator_of, parameters_of
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import first_line, pip_install

NEEDED = "num_envs", "single_observation_space", "single_action_space"  # What a factory's envs must have.
MASKED_RESETS = [0, 12, 1]  # The first ale-py whose resets of some envs do not hang.
SYNC = Option("vectorization_mode"), " sync"
GIVEN_BY_THE_RUN: dict[str, tuple[str | Option, ...]] = {
    "num_envs": ("it is the rank's share of ", Option("num_envs")),
    "seed": ("it comes from --seed, or in a trainer from reset(seed=...)",),
    "first_env": ("each rank has its own",),
    "batch_size": ("all envs of a rank are stepped at once",),
}


def of_entry_point(env_id: str, kwargs: Mapping[str, Any], indices: range, num_threads: int) -> NativeVectorEnv:
    """Make envs by a vector entry point, which gets the slice's first index if it has a parameter `first_env`.

    ALE's envs get threads, and a seed for each episode or env.
    """
    from importlib.metadata import version  # Slow.

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
        return SeededEpisodes(envs, indices)
    if is_ale:
        return NativeVectorEnv(envs, Reproducibility.ENV, lambda seed: np.array(env_seeds(seed, indices), np.int32))
    if (promised := promised_by(envs.unwrapped, env_id)) != Reproducibility.SLICE:
        return NativeVectorEnv(envs, promised)
    return NativeVectorEnv(envs, promised, lambda seed: seed_of_slice(seed, indices))


def promised_by(envs: VectorEnv, name: str) -> Reproducibility:
    """Return the envs' promise about their random numbers; UsageError if it is no `Reproducibility`."""
    promised = getattr(envs, "reproducibility", Reproducibility.SLICE)
    try:
        return Reproducibility(promised)
    except ValueError as error:
        allowed = ", ".join(Reproducibility)
        raise UsageError(f"{name}: the attribute reproducibility must be one of {allowed}, got {promised!r}") from error


def takes_episode_seeds(wanted: bool | None, ale_version: str) -> bool:
    """Tell whether the episodes of ALE's envs are to have seeds of their own; None takes them where that is possible.

    Each then costs a second reset, for which ALE loads its ROM again: 0.08 s, as long as 250 steps of an env.
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
        return parameters_of(creator_of(entry_point))
    except (gymnasium.error.Error, ImportError, ValueError, AttributeError):
        return {}  # What makes the envs says it better.


def of_factory(
    factory: Callable[..., Any], name: str, kwargs: Mapping[str, Any], indices: range, seed: int
) -> NativeVectorEnv:
    """Make envs by a factory of the user's, or raise UsageError: `factory(env_indices, seed) -> VectorEnv`."""

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
        return _make_pool(task, kwargs, env_seeds(seed, indices), num_threads)

    return SeededWhenMade(make(seed), make, seed, Reproducibility.ENV)


def _make_pool(task: str, kwargs: Mapping[str, Any], seeds: list[int], num_threads: int) -> VectorEnv:
    """Make a pool of an env for each seed, or raise UsageError."""
    try:
        import envpool
    except ImportError as error:
        raise UsageError(
            Option("vectorization_mode"), f" envpool: {first_line(error)}; {pip_install('[envpool]')}"
        ) from error
    known = envpool.list_all_envs()
    if task not in known:
        raise UsageError(Option("env"), f" {task}: EnvPool has no such task{_near(task, known)}")
    options = {"num_threads": num_threads} | dict(kwargs)
    try:
        pool = envpool.make_gymnasium(task, num_envs=len(seeds), seed=seeds, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        what = f" {dict(kwargs)} do not fit {task} of EnvPool: {first_line(error)}"
        raise UsageError(Option("env_kwargs"), what) from error
    if pool.spec.config.max_num_players == 1:
        return PoolVectorEnv(pool)
    try:
        return PlayersVectorEnv(pool)
    except UsageError as error:
        raise UsageError(Option("env"), f" {task}: {error}") from error


def _near(task: str, known: list[str]) -> str:
    near = get_close_matches(task, known, 3)
    bare = task.rpartition("/")[2]  # ALE/Pong-v5 is Pong-v5 there.
    near = [bare] if bare in known else near
    return f"; near it are {', '.join(near)}" if near else "; `envpool.list_all_envs()` has all"


def env_seeds(seed: int, indices: range) -> list[int]:
    """Return a seed for each env, the same whatever the slice."""
    return [next(episode_seeds(seed, index)) for index in indices]


def check_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Raise UsageError for arguments that the program gives, or for which EnvPool ends the process."""
    for name, way_out in GIVEN_BY_THE_RUN.items():
        if name in kwargs:
            raise UsageError(Option("env_kwargs"), f" cannot have {name}, got {kwargs[name]!r}: ", *way_out)
    num_threads = kwargs.get("num_threads", 1)
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise UsageError(Option("env_kwargs"), f": num_threads must be a whole number from 1 on, got {num_threads!r}")


def checked(envs: NativeVectorEnv, name: str, is_of_factory: bool) -> NativeVectorEnv:
    """Return natively vectorized envs, or raise UsageError: their spaces must have fixed shapes.

    They begin their next episode in the step after an end; those of a factory may do so in the same step, if they do
    not promise EPISODE.
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
