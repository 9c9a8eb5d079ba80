"""Natively vectorized envs: one object that steps all envs of a rank at once.

They come from a vector entry point that is registered with Gymnasium, from EnvPool, or from a factory of the user's.
Each is adapted to what the program asks of envs: it resets in the next step, it is seeded by the seed of the run, and
it says what it promises about its random numbers.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.seeding import episode_seeds, seed_of_slice
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.inputs import Reset
from mpi_rollout.envs.pool import make_pool
from mpi_rollout.envs.rollout import Rollout
from mpi_rollout.errors import Field, UsageError

Make = Callable[[int], VectorEnv]  # By the seed of the run.
NEEDED = "num_envs", "single_observation_space", "single_action_space"  # Of a factory's envs.
SEEDS_31_BITS = 0x7FFFFFFF  # C++ takes int32.


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
        What they promise.
    """

    def __init__(
        self, envs: VectorEnv, reproducibility: Reproducibility, seed_for: Callable[[int], Any] = lambda seed: seed
    ) -> None:
        self.reproducibility, self._seed_for = reproducibility, seed_for
        self._take(envs)

    def _take(self, envs: VectorEnv) -> None:
        self._envs = envs
        self.num_envs, self.metadata, self.spec = envs.num_envs, envs.metadata, envs.spec
        self.single_observation_space = envs.single_observation_space
        self.single_action_space = envs.single_action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = getattr(envs, "render_mode", None)
        self.step = envs.step  # type: ignore[method-assign]  # Called in each step, without a detour.
        if isinstance(envs, Rollout):  # From Python 3.12 on `isinstance` does not ask `__getattr__`.
            self.rollout, self.last_observations = envs.rollout, envs.last_observations

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Reset:
        given = {} if seed is None else {"seed": self._seed_for(seed)}
        return self._envs.reset(**given, options=options)

    def render(self) -> Any:
        return self._envs.render()

    def close(self, **kwargs: Any) -> None:
        self._envs.close(**kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._envs, name)  # `call`, `set_attr`, and what else these envs have.


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
    `reproducibility` says.  ALE's get threads and a seed for each env.  Others share a generator.
    """
    options = dict(kwargs)
    parameters = _parameters_of(env_id)
    is_ale = env_id.rpartition(":")[2].startswith("ALE/")
    if "first_env" in parameters:
        options["first_env"] = indices.start
    elif is_ale:
        options.setdefault("num_threads", num_threads)
    envs = gymnasium.make_vec(env_id, len(indices), vectorization_mode="vector_entry_point", **options)
    promised = getattr(envs.unwrapped, "reproducibility", Reproducibility.SLICE)
    if is_ale:
        return NativeVectorEnv(envs, Reproducibility.ENV, lambda seed: np.array(env_seeds(seed, indices), np.int32))
    if promised == Reproducibility.SLICE:
        return NativeVectorEnv(envs, Reproducibility.SLICE, lambda seed: seed_of_slice(seed, indices))
    return NativeVectorEnv(envs, Reproducibility(promised))


def _parameters_of(env_id: str) -> Mapping[str, object]:
    """Return the parameters of a vector entry point; none where it does not say."""
    module, _, registered = env_id.rpartition(":")
    try:
        if module:
            import_module(module)
        entry_point = gymnasium.spec(registered).vector_entry_point
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        return signature(creator).parameters if creator is not None else {}
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
        return envs

    made = make(seed)
    promised = getattr(made, "reproducibility", Reproducibility.SLICE)
    try:
        reproducibility = Reproducibility(promised)
    except ValueError as error:
        allowed = ", ".join(Reproducibility)
        raise UsageError(f"{name}: the attribute reproducibility must be one of {allowed}, got {promised!r}") from error
    return SeededWhenMade(made, make, seed, reproducibility)


def of_envpool(task: str, kwargs: Mapping[str, Any], indices: range, seed: int, num_threads: int) -> NativeVectorEnv:
    """Make a pool of EnvPool's; each env has a seed of its own."""

    def make(seed: int) -> VectorEnv:
        return make_pool(task, kwargs, env_seeds(seed, indices), num_threads)

    return SeededWhenMade(make(seed), make, seed, Reproducibility.ENV)


def env_seeds(seed: int, indices: range) -> list[int]:
    """Return a seed of 31 bits for each env, the same whatever the slice."""
    return [next(episode_seeds(seed, index)) & SEEDS_31_BITS for index in indices]


def checked(envs: NativeVectorEnv, name: str) -> NativeVectorEnv:
    """Refuse natively vectorized envs that the program cannot step.

    Raises
    ------
    UsageError
        Their spaces have no fixed shape, or they do not reset in the next step.
    """
    leaves(envs.single_observation_space), leaves(envs.single_action_space)
    metadata = envs.metadata
    autoreset_mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    if autoreset_mode != AutoresetMode.NEXT_STEP:
        got = f"{name} resets in mode {autoreset_mode}, expected NEXT_STEP; use "
        raise UsageError(got, Field("vectorization_mode"), " sync")
    return envs
