"""TorchRL's batched envs, and its collector with random actions."""

from functools import partial
from typing import Any

import numpy as np

from mpi_rollout.bench.compare.peers import ActionsInTurn, Sampler, drawn_actions
from mpi_rollout.bench.compare.setups import Setup
from mpi_rollout.bench.compare.turns import SEED, BatchSystem, Ends

FRAME_ROWS = 32  # Of all envs, that the collector gives at a time.


def _env(env: str) -> Any:
    from torchrl.envs import GymEnv

    return GymEnv(env, categorical_action_encoding=True)


def _loop(env: str, num_envs: int) -> Any:
    from torchrl.envs import SerialEnv

    return SerialEnv(num_envs, partial(_env, env))


def serial(setup: Setup) -> BatchSystem:
    """Make the loop."""
    return _batched(setup, _loop(setup.env, setup.num_envs))


def parallel(setup: Setup) -> BatchSystem:
    """Make a loop in each of as many processes as there are cores."""
    from torchrl.envs import ParallelEnv

    num_envs = setup.num_envs // setup.num_cores
    return _batched(setup, ParallelEnv(setup.num_cores, partial(_loop, setup.env, num_envs)))


def _batched(setup: Setup, envs: Any) -> BatchSystem:
    """Step envs by `step_and_maybe_reset`, as rollouts and collectors do."""
    import torch

    torch.set_num_threads(1)
    envs.set_seed(SEED)
    data: Any = None

    def reset() -> None:
        nonlocal data
        data = envs.reset()

    def step(actions: Any) -> Ends:
        nonlocal data
        data["action"] = actions
        after, data = envs.step_and_maybe_reset(data)
        ends = after["next"]
        return ends["terminated"].numpy().ravel(), ends["truncated"].numpy().ravel()

    drawn = [torch.as_tensor(np.reshape(row, (*envs.batch_size, *row.shape[1:]))) for row in drawn_actions(setup)]
    return BatchSystem(ActionsInTurn(reset, step, envs.close, drawn, False))


def collector(setup: Setup) -> BatchSystem:
    """Make a collector with a worker for each core, which draw their own actions."""
    import torch
    import torchrl.collectors

    torch.set_num_threads(1)
    kind = getattr(torchrl.collectors, "MultiSyncCollector", None) or torchrl.collectors.MultiSyncDataCollector
    loop = partial(_loop, setup.env, setup.num_envs // setup.num_cores)
    collecting = kind(
        [loop] * setup.num_cores,
        None,  # Random actions.
        frames_per_batch=FRAME_ROWS * setup.num_envs,
        total_frames=-1,
    )
    collecting.set_seed(SEED)
    batches = iter(collecting)
    return BatchSystem(Sampler(lambda: None, lambda: next(batches).numel(), collecting.shutdown))
