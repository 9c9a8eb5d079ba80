"""How each system's envs are made.  What a system needs beyond this program is imported in its function only."""

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from mpi_rollout.bench.compare.pool import ProcessPoolVectorEnv
from mpi_rollout.bench.compare.steppers import (
    SEED,
    BareStepper,
    BatchSystem,
    FragmentStepper,
    PartsStepper,
    PartsSystem,
    RecordingSystem,
    RunningSystem,
    Turn,
    VecEnvStepper,
    VectorStepper,
    take_turn,
)
from mpi_rollout.bench.compare.systems import envpool_id
from mpi_rollout.collect.fragments import auto_length
from mpi_rollout.core.layout import SlotLayout
from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import leaves, rows_of, tree_of
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

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
    def make(self) -> EnvMaker:
        return EnvMaker(self.env)

    @property
    def connected(self) -> "MPIVectorEnv":
        assert self.envs is not None
        return self.envs


def actions_of(space: spaces.Space, num_envs: int) -> list[Any]:
    """Draw random actions of all envs for some steps: the same for all systems."""
    draw = RandomPolicy(space, num_envs, SEED)
    return [draw() for _ in range(BLOCK_STEPS)]


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


class BareOnAllCores:
    """Bare loops in a process for each core, at the same time: the sum of their rates is the limit."""

    def __init__(self, setup: Setup):
        context = multiprocessing.get_context("fork")
        self._workers: list[tuple[Connection, ForkProcess]] = []
        partition = Partition(setup.num_envs, setup.num_cores)
        for rank in range(setup.num_cores):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._work, args=(setup, partition.envs_of(rank), theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((ours, process))
        for ours, _ in self._workers:
            ours.recv()

    @staticmethod
    def _work(setup: Setup, mine: range, connection: Connection) -> None:
        stepper = bare_stepper([setup.make() for _ in mine], setup.num_envs, mine)
        connection.send("ready")
        with suppress(EOFError):
            while window_s := connection.recv():
                connection.send(take_turn(stepper, window_s))

    def take_turn(self, window_s: float) -> Turn:
        """Let all loops take theirs.  They end at different times, so the rates are summed, not the env steps."""
        for connection, _ in self._workers:
            connection.send(window_s)
        turns: list[Turn] = [connection.recv() for connection, _ in self._workers]
        seconds = max(turn.seconds for turn in turns)
        env_steps = sum(turn.env_steps / turn.seconds for turn in turns) * seconds
        reset_s = max(turn.reset_s for turn in turns)
        return Turn(reset_s, round(env_steps), seconds, max(turn.sweeps for turn in turns))

    def close(self) -> None:
        for _, process in self._workers:
            process.kill()
            process.join()


def mpi(setup: Setup) -> BatchSystem:
    """Make this program's envs in lockstep."""
    return _of_vector_env(setup.connected)


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


def _of_vector_env(envs: VectorEnv) -> BatchSystem:
    return BatchSystem(VectorStepper(envs, actions_of(envs.single_action_space, envs.num_envs)))


def sync(setup: Setup) -> BatchSystem:
    """Make Gymnasium's loop."""
    return _of_vector_env(SyncVectorEnv([setup.make] * setup.num_envs))


def async_(setup: Setup) -> BatchSystem:
    """Make Gymnasium's process for each env, with its shared memory."""
    return _of_vector_env(AsyncVectorEnv([setup.make] * setup.num_envs, context="fork"))


def native(setup: Setup) -> BatchSystem:
    """Make the env's own vectorized version, on one core."""
    return _of_vector_env(EnvMaker(setup.env, {}, "vector_entry_point").native(range(setup.num_envs)))


def pool(setup: Setup) -> BatchSystem:
    """Make several envs in each of as many processes as there are cores."""
    return _of_vector_env(ProcessPoolVectorEnv(setup.make, setup.num_envs, setup.num_cores))


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


def _envpool(setup: Setup, batch_size: int) -> Any:
    import envpool

    sizes = {"num_envs": setup.num_envs, "batch_size": batch_size, "num_threads": setup.num_cores}
    return envpool.make(envpool_id(setup.env), env_type="gymnasium", seed=SEED, **sizes)


class EnvPoolSteps:
    """EnvPool as `VectorStepper` needs it: it gets its seed when it is made."""

    def __init__(self, envs: Any, num_envs: int):
        self.num_envs, self.step, self.close = num_envs, envs.step, envs.close
        self._envs = envs

    def reset(self, seed: int) -> None:
        self._envs.reset()


def envpool(setup: Setup) -> BatchSystem:
    """Make EnvPool with a thread for each core, in lockstep."""
    envs = _envpool(setup, setup.num_envs)
    return BatchSystem(VectorStepper(EnvPoolSteps(envs, setup.num_envs), actions_of(envs.action_space, setup.num_envs)))


class EnvPoolParts:
    """EnvPool's batches of those that are ready first."""

    def __init__(self, envs: Any, num_batches: int):
        self._envs, self._num_batches, self.close = envs, num_batches, envs.close
        self._all = np.arange(envs.config["num_envs"])

    def reset(self) -> None:
        self._envs.async_reset()
        for _ in range(self._num_batches):  # The resets themselves.
            self._envs.recv()

    def send(self, actions: object, indices: np.ndarray | None) -> None:
        self._envs.send(actions, self._all if indices is None else indices)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        _, _, terminations, truncations, infos = self._envs.recv()
        return terminations, truncations, infos["env_id"]


def envpool_by_parts(setup: Setup) -> PartsSystem:
    """Make EnvPool, first ready, in batches of half of the envs or of the next smaller divisor of their number.

    What is under way at a turn's end must come back in whole batches.
    """
    num_envs = setup.num_envs
    batch_size = next(size for size in range(num_envs // 2, 0, -1) if num_envs % size == 0)
    envs = _envpool(setup, batch_size)
    parts = EnvPoolParts(envs, num_envs // batch_size)
    return PartsSystem(PartsStepper(parts, num_envs, actions_of(envs.action_space, num_envs)))


def minari(setup: Setup) -> RecordingSystem:
    """Make one env whose episodes are recorded, where MINARI_DATASETS_PATH says."""
    from minari import DataCollector

    return RecordingSystem(bare_stepper([DataCollector(setup.make())], 1, range(1)))


MAKERS: dict[str, Callable[[Setup], RunningSystem]] = {
    "bare": bare,
    "bare_on_all_cores": BareOnAllCores,
    "mpi": mpi,
    "mpi_fragments": mpi_fragments,
    "mpi_by_parts": mpi_by_parts,
    "sync": sync,
    "async_": async_,
    "native": native,
    "pool": pool,
    "sb3_dummy": sb3_dummy,
    "sb3_subproc": sb3_subproc,
    "envpool": envpool,
    "envpool_by_parts": envpool_by_parts,
    "minari": minari,
}
