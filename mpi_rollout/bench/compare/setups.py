"""What a system is to be made of.

Another Python may run this, with an old Gymnasium, and without what this program needs besides NumPy and Gymnasium.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpi_rollout.bench.compare.turns import SEED, RunningSystem
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy

if TYPE_CHECKING:
    import gymnasium
    from gymnasium import spaces

    from mpi_rollout.train.vector_env import MPIVectorEnv


@dataclass(frozen=True)
class Setup:
    """What a system is to be made of.

    Parameters
    ----------
    envs
        Of this program: what `connect` gave on `num_ranks` ranks.
    """

    env: str
    num_envs: int
    num_cores: int
    envs: "MPIVectorEnv | None" = None
    num_ranks: int = 1

    @property
    def make(self) -> "Callable[..., gymnasium.Env]":
        """Make one env.  It needs this program's Gymnasium."""
        from mpi_rollout.envs.env_maker import EnvMaker

        return EnvMaker(self.env)

    @property
    def connected(self) -> "MPIVectorEnv":
        assert self.envs is not None
        return self.envs


def actions_of(space: "spaces.Space", num_envs: int) -> list[Any]:
    """Draw random actions of all envs for some steps: the same for all systems."""
    draw = RandomPolicy(space, num_envs, SEED)
    return [draw() for _ in range(BLOCK_STEPS)]


def maker_of(name: str) -> Callable[[Setup], RunningSystem]:
    """Load what makes a system: MODULE.FUNCTION in this package."""
    module, _, function = name.rpartition(".")
    return getattr(import_module(f"mpi_rollout.bench.compare.{module}"), function)
