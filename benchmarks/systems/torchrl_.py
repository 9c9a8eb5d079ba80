"""TorchRL's batched envs, and its collector with random actions."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from mpi_rollout.studies.compare import SEED, Setup
from systems.stepped import Stepper, actions_of, in_turn

FRAME_ROWS = 32  # Of all envs, that the collector gives at a time.


def _env(env: str) -> Any:
    from torchrl.envs import GymEnv

    return GymEnv(env, categorical_action_encoding=True)


def _loop(env: str, num_envs: int) -> Any:
    from torchrl.envs import SerialEnv

    return SerialEnv(num_envs, partial(_env, env))


def serial(setup: Setup) -> Any:
    """Make the loop."""
    return _batched(setup, _loop(setup.env["env"], setup.num_envs))


def parallel(setup: Setup) -> Any:
    """Make a loop in each of as many processes as there are cores."""
    from torchrl.envs import ParallelEnv

    loop = partial(_loop, setup.env["env"], setup.num_envs // setup.num_cores)
    return _batched(setup, ParallelEnv(setup.num_cores, loop))


@contextmanager
def _batched(setup: Setup, envs: Any) -> Iterator[Stepper]:
    """Step envs by `step_and_maybe_reset`, as rollouts and collectors do."""
    import torch

    torch.set_num_threads(1)
    envs.set_seed(SEED)
    data: Any = None

    def reset() -> None:
        nonlocal data
        data = envs.reset()

    def step(actions: Any) -> Any:
        nonlocal data
        data["action"] = actions
        after, data = envs.step_and_maybe_reset(data)
        ends = after["next"]
        return ends["terminated"].numpy().ravel(), ends["truncated"].numpy().ravel()

    drawn = [torch.as_tensor(np.reshape(row, (*envs.batch_size, *row.shape[1:]))) for row in actions_of(setup)]
    yield in_turn(reset, step, drawn, False)
    envs.close()


@contextmanager
def collector(setup: Setup) -> Iterator[Stepper]:
    """Make a collector with a worker for each core, which draw their own actions."""
    import torch
    import torchrl.collectors

    torch.set_num_threads(1)
    kind = getattr(torchrl.collectors, "MultiSyncCollector", None) or torchrl.collectors.MultiSyncDataCollector
    loop = partial(_loop, setup.env["env"], setup.num_envs // setup.num_cores)
    sizes = {"frames_per_batch": FRAME_ROWS * setup.num_envs, "total_frames": -1}
    collecting = kind([loop] * setup.num_cores, None, **sizes)  # None: random actions.
    collecting.set_seed(SEED)
    batches = iter(collecting)
    yield Stepper(lambda: None, lambda: next(batches).numel())
    collecting.shutdown()
