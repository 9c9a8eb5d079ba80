"""How each system's envs are made.  What a system needs beyond this program is imported in its function only."""

from typing import TYPE_CHECKING

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import iterate

from mpi_rollout.bench.compare.all_cores import OnAllCores
from mpi_rollout.bench.compare.pool import ProcessPoolVectorEnv
from mpi_rollout.bench.compare.setups import Setup, actions_of
from mpi_rollout.bench.compare.steppers import BareStepper, FragmentStepper, PartsStepper, VecEnvStepper, of_vector_env
from mpi_rollout.bench.compare.turns import SEED, BatchSystem, PartsSystem, RecordingSystem
from mpi_rollout.collect.fragments import auto_length
from mpi_rollout.core.layout import SlotLayout
from mpi_rollout.core.spaces import leaves, rows_of, tree_of

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from mpi_rollout.train.vector_env import MPIVectorEnv


def bare(setup: Setup) -> BatchSystem:
    """Make a loop over all envs on one core."""
    return BatchSystem(
        bare_stepper([setup.make() for _ in range(setup.num_envs)], setup.num_envs, range(setup.num_envs))
    )


def bare_stepper(envs: list[gymnasium.Env], num_envs: int, mine: range) -> BareStepper:
    """Make a loop over the envs `mine` of `num_envs`."""
    space = envs[0].action_space
    rows = [rows_of(row, slice(mine.start, mine.stop)) for row in actions_of(space, num_envs)]
    batched = gymnasium.vector.utils.batch_space(space, len(mine))
    return BareStepper(envs, [list(iterate(batched, row)) for row in rows], mine.start)


def bare_on_all_cores(setup: Setup) -> OnAllCores:
    """Make a bare loop in a process for each core."""
    return OnAllCores(setup, lambda setup, mine: bare_stepper([setup.make() for _ in mine], setup.num_envs, mine))


def mpi(setup: Setup) -> BatchSystem:
    """Make this program's envs in lockstep."""
    return of_vector_env(setup.connected)


def mpi_fragments(setup: Setup) -> BatchSystem:
    """Make this program's envs in fragments, as long as those of a run."""
    envs, space = setup.connected, setup.connected.single_action_space
    drawn = actions_of(space, setup.num_envs)
    actions = tree_of(space, (np.stack([leaf.of(row) for row in drawn]) for leaf in leaves(space)))
    layout = SlotLayout(envs.single_observation_space, -(-setup.num_envs // setup.num_ranks))
    most = min(auto_length(layout.nbytes, setup.num_ranks), len(drawn))
    return BatchSystem(FragmentStepper(envs, actions, len(drawn), most))


class OurParts:
    """Groups of this program, or its ranks as they get ready."""

    def __init__(self, envs: "MPIVectorEnv"):
        self._envs, self.send = envs, envs.send

    def reset(self) -> None:
        self._envs.reset(seed=SEED)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, _, terminations, truncations, _, indices = self._envs.recv()
        return terminations, truncations, indices

    def close(self) -> None:
        """Do nothing: leaving `connect` closes them."""


def mpi_by_parts(setup: Setup) -> PartsSystem:
    """Make this program's envs with groups, or first ready."""
    envs = setup.connected
    actions = actions_of(envs.single_action_space, setup.num_envs)
    return PartsSystem(PartsStepper(OurParts(envs), setup.num_envs, actions))


def sync(setup: Setup) -> BatchSystem:
    """Make Gymnasium's loop."""
    return of_vector_env(SyncVectorEnv([setup.make] * setup.num_envs))


def async_(setup: Setup) -> BatchSystem:
    """Make Gymnasium's process for each env, with its shared memory."""
    return of_vector_env(AsyncVectorEnv([setup.make] * setup.num_envs, context="fork"))


def pool(setup: Setup) -> BatchSystem:
    """Make several envs in each of as many processes as there are cores."""
    return of_vector_env(ProcessPoolVectorEnv(setup.make, setup.num_envs, setup.num_cores))


def sb3_dummy(setup: Setup) -> BatchSystem:
    """Make Stable-Baselines3's loop."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    return _of_vec_env(DummyVecEnv([setup.make] * setup.num_envs))


def sb3_subproc(setup: Setup) -> BatchSystem:
    """Make Stable-Baselines3's process for each env."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return _of_vec_env(SubprocVecEnv([setup.make] * setup.num_envs, start_method="fork"))


def _of_vec_env(envs: "VecEnv") -> BatchSystem:
    return BatchSystem(VecEnvStepper(envs, actions_of(envs.action_space, envs.num_envs)))


def minari(setup: Setup) -> RecordingSystem:
    """Make one env whose episodes are recorded, where MINARI_DATASETS_PATH says."""
    from minari import DataCollector

    return RecordingSystem(bare_stepper([DataCollector(setup.make())], 1, range(1)))
