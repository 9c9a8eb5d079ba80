"""A `MPIVectorEnv` with the methods of a `dm_env.Environment`, for batches: what EnvPool calls its dm_env API.

    with mpi_rollout.connect("CartPole-v1", num_envs=64) as envs:
        if envs is not None:
            from mpi_rollout.dm_env import MPIEnvironment

            env = MPIEnvironment(envs, seed=1)
            timestep = env.reset()
            while True:
                timestep = env.step(policy(timestep.observation))

Where it differs from EnvPool: observations are those of the env alone, without `env_id` and `players`; the dtypes are
those that the specs say (EnvPool gives rewards and discounts as float32); an episode that is truncated ends with a
discount of 1, as in `dm_env.truncation`, while EnvPool gives 0.
"""

from typing import TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.spaces import Space, Tree, bounds_of
from mpi_rollout.train.vector_env import MPIVectorEnv

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise ImportError(f"mpi_rollout.dm_env needs dm_env ({error}); pip install dm-env") from error

FIRST, MID, LAST = np.arange(3, dtype=np.int32)  # The numbers of `dm_env.StepType`.
Spec: TypeAlias = "specs.Array | dict[str, Spec] | tuple[Spec, ...]"


class MPIEnvironment(dm_env.Environment):
    """All ranks' envs as a `dm_env.Environment` whose time steps are batches.

    A `TimeStep` has arrays with one row for each env: `step_type` int32, of `dm_env.StepType`; `reward` float64;
    `discount` float64, 0 where an episode terminates and 1 else; `observation` as the space nests it.  `first()`,
    `mid()` and `last()` are arrays of bools.  An env whose episode has ended (LAST) is reset in the next step, which
    ignores its action: it is FIRST then, with reward 0 and discount 1.

    Parameters
    ----------
    envs
        What `mpi_rollout.connect` gives on the root, or `mpi_rollout.launch`, with the autoreset mode "next_step".
    seed
        Seeds env i with seed + i at the first reset; None leaves the envs' generators alone.

    Attributes
    ----------
    num_envs
        Of all ranks.
    envs
        What was given, for `call`, `get_attr`, `set_attr` and `render`.  Reset and step it through this object alone.

    Raises
    ------
    TypeError, ValueError
        `envs` is something else, or its envs reset in another way.
    """

    def __init__(self, envs: MPIVectorEnv, seed: int | None = None):
        if not isinstance(envs, MPIVectorEnv):
            raise TypeError(
                f"MPIEnvironment needs the envs that mpi_rollout.connect gives on the root, got {type(envs).__name__}; "
                "other ranks are given None: use it below `if envs is not None:`"
            )
        if envs.agents:
            raise ValueError(
                f"dm_env's envs have one agent, these have {', '.join(envs.agents)}; use the envs as they are"
            )
        if envs.autoreset_mode != AutoresetMode.NEXT_STEP:
            raise ValueError(
                "dm_env's envs reset in the step after their end, got autoreset mode "
                f'{envs.autoreset_mode.value}; connect(..., autoreset_mode="next_step")'
            )
        self.envs, self.num_envs, self._seed = envs, envs.num_envs, seed
        self._ended: np.ndarray | None = None  # The envs whose last step was LAST; None before the first reset.

    def reset(self) -> dm_env.TimeStep:
        """Start a new episode in every env."""
        observations, _ = self.envs.reset(seed=self._seed)
        self._seed, self._ended = None, np.zeros(self.num_envs, np.bool_)
        step_types, rewards = np.full(self.num_envs, FIRST), np.zeros(self.num_envs)
        return dm_env.TimeStep(step_types, rewards, np.ones(self.num_envs), observations)

    def step(self, action: Tree) -> dm_env.TimeStep:
        """Step all envs; before the first reset, reset them.

        Parameters
        ----------
        action
            Of shape (num_envs, ...), or a tree of such arrays.

        Raises
        ------
        ActionError, RankError
            As `MPIVectorEnv.step`.
        """
        if self._ended is None:
            return self.reset()
        observations, rewards, terminations, truncations, _ = self.envs.step(action)
        ended = terminations | truncations
        step_types = np.where(ended, LAST, np.where(self._ended, FIRST, MID))
        self._ended = ended
        return dm_env.TimeStep(step_types, rewards, np.where(terminations, 0.0, 1.0), observations)

    def observation_spec(self) -> Spec:
        """Return the spec of one env's observations: nested as its space."""
        return spec_of(self.envs.single_observation_space, "observation")

    def action_spec(self) -> Spec:
        """Return the spec of one env's actions: nested as its space."""
        return spec_of(self.envs.single_action_space, "action")

    def reward_spec(self) -> specs.Array:
        """Return the spec of one env's rewards."""
        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of one env's discounts."""
        return specs.BoundedArray((), np.float64, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Let the other ranks out of `connect`."""
        self.envs.close()


def spec_of(space: Space, name: str) -> Spec:
    """Return the spec of a space; where it is nested, the specs have the names of its members."""
    if isinstance(space, spaces.Dict):
        return {key: spec_of(child, str(key)) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(spec_of(child, f"{name}_{index}") for index, child in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return specs.DiscreteArray(int(space.n), space.dtype, name)
    low, high = bounds_of(space)
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return specs.Array(space.shape, space.dtype, name)
    return specs.BoundedArray(space.shape, space.dtype, low, high, name)
