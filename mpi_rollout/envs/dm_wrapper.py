"""A `dm_env.Environment` as a Gymnasium env: shimmy converts what passes, and seeds reach the generators.

A dm_env has no `reset(seed)`.  So a seed goes to its method `seed`, or that of an env inside, if there is one.  Else it
goes to the generators that these envs and their tasks have as attributes: dm_control's tasks have `task.random`, its
composer envs `random_state`, bsuite's envs `_rng`.  shimmy's own wrapper reseeds the first two as well, with the same
numbers.  An env that has none of these is stepped as it is, with a notice.
"""

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout.core.spaces import Tree
from mpi_rollout.envs.faults import Begun, Outcome
from mpi_rollout.envs.inputs import OptionsOfOne
from mpi_rollout.errors import UsageError
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.text import first_line, pip_install

GENERATORS = (np.random.RandomState, np.random.Generator, random.Random)
INNER_NAMES = ("_env", "env", "_environment")  # What wrappers call the env inside: dm_control's, shimmy's, Acme's.


def is_dm_env(made: object) -> bool:
    """Tell whether something is a `dm_env.Environment`, without importing dm_env."""
    dm_env = sys.modules.get("dm_env")
    return dm_env is not None and isinstance(made, dm_env.Environment)


def wrapped(made: Any, name: str) -> "DmEnv":
    """Wrap a `dm_env.Environment` that `name` has made; UsageError without shimmy, or for a spec without a space."""
    try:
        return DmEnv(made, name)
    except ImportError as error:
        raise UsageError(
            f"{name} is a dm_env.Environment, which shimmy wraps: {first_line(error)}; {pip_install('[dm]')}"
        ) from error
    except (NotImplementedError, TypeError) as error:
        problem = f"{name} is a dm_env.Environment with a spec that shimmy makes no space of: {first_line(error)}"
        raise UsageError(f"{problem}; derive its class from gymnasium.Env") from error


def of_unknown_mujoco(error: AttributeError) -> str:
    """Say what to do where dm_control is older than MuJoCo, whose structs have changed; "" for other errors."""
    if "dm_control" not in sys.modules or not str(error).startswith(("'MjModel' object", "'MjData' object")):
        return ""
    from importlib.metadata import version  # Slow.

    return (
        f"{error}; dm_control {version('dm_control')} does not know MuJoCo {version('mujoco')}; {pip_install('[dm]')}"
    )


class DmEnv(gymnasium.Env):
    """A `dm_env.Environment` with Gymnasium's methods; its own attributes can be read through it.

    Its specs are `Array`, `BoundedArray` and `DiscreteArray`, and dicts of them.  LAST with a discount of 0 is a
    termination; with a larger one it is a truncation.  The infos "timestep.discount" and "timestep.step_type" are those
    that shimmy gives.
    """

    def __init__(self, dm_env: Any, name: str):
        from shimmy.utils.dm_env import dm_env_step2gym_step, dm_spec2gym_space

        self.dm_env, self._name, self._outcome = dm_env, name, dm_env_step2gym_step
        self._action_spec = dm_env.action_spec()
        self.observation_space = dm_spec2gym_space(dm_env.observation_spec())
        self.action_space = dm_spec2gym_space(self._action_spec)

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> Begun:
        """Start an episode.  A seed reaches the env's generators; options reach nothing."""
        super().reset(seed=seed)
        if seed is not None and not reseed(self.dm_env, seed):
            NOTICES.note(
                self._name,
                "seeds do not reach this dm_env.Environment; if it draws random numbers, its data are others in each "
                "run, and a run that was stopped does not go on with the same data; give it a method seed(int)",
            )
        observation, _, _, _, info = self._outcome(self.dm_env.reset())
        return observation, info

    def step(self, action: Tree) -> Outcome:
        return self._outcome(self.dm_env.step(as_specified(self._action_spec, action)))

    def close(self) -> None:
        self.dm_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "dm_env":  # Not what copying and pickling ask for.
            raise AttributeError(name)
        return getattr(self.dm_env, name)


def as_specified(spec: Any, action: Tree) -> Tree:
    """Return an action with the dtypes of its spec: the number of a `DiscreteArray` may be an int32."""
    if isinstance(spec, Mapping):
        return {key: as_specified(part, action[key]) for key, part in spec.items()}
    return np.asarray(action, spec.dtype)[()]


def reseed(dm_env: object, seed: int) -> bool:
    """Seed a `dm_env.Environment`; tell whether it has anything to seed."""
    envs = list(with_inner_envs(dm_env))
    for method in (getattr(env, "seed", None) for env in envs):
        if callable(method):
            method(seed)
            return True
    generators = {id(generator): generator for env in envs for generator in generators_of(env)}.values()
    for number, generator in enumerate(generators):  # Each of several draws numbers of its own.
        own = seed if number == 0 else int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(own).state
        else:
            generator.seed(own)
    return bool(generators)


def with_inner_envs(env: object) -> Iterator[object]:
    """Yield an env, and the envs inside where it is a wrapper, the outermost first."""
    seen: set[int] = set()
    while env is not None and id(env) not in seen:
        yield env
        seen.add(id(env))
        attributes = getattr(env, "__dict__", {})
        env = next((attributes[name] for name in INNER_NAMES if name in attributes), None)


def generators_of(env: object) -> Iterator[Any]:
    """Yield the generators that are attributes of an env, or of its task."""
    attributes = getattr(env, "__dict__", {})
    for values in (attributes, getattr(attributes.get("_task"), "__dict__", {})):
        yield from (value for value in values.values() if isinstance(value, GENERATORS))
