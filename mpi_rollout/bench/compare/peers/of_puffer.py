"""PufferLib's vectorization of Gymnasium envs (3.0), which resets in the next step."""

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from mpi_rollout.bench.compare.peers import ActionsInTurn, drawn_actions, env_function
from mpi_rollout.bench.compare.setups import Setup
from mpi_rollout.bench.compare.turns import SEED, BatchSystem, Ends


def serial(setup: Setup) -> BatchSystem:
    """Make the loop."""
    return _system(setup, "Serial", {})


def multiprocessing(setup: Setup) -> BatchSystem:
    """Make several envs in each of as many processes as there are cores."""
    return _system(setup, "Multiprocessing", {"num_workers": setup.num_cores, "overwork": True})


def _system(setup: Setup, backend: str, more: dict[str, Any]) -> BatchSystem:
    pufferlib = _imported()
    make = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=env_function(setup))
    envs = pufferlib.vector.make(make, backend=backend, num_envs=setup.num_envs, **more)

    def step(actions: Any) -> Ends:
        _, _, terminations, truncations, _ = envs.step(actions)
        return terminations.copy(), truncations.copy()  # The next step writes there.

    return BatchSystem(ActionsInTurn(partial(envs.reset, SEED), step, envs.close, drawn_actions(setup), True))


def _imported() -> ModuleType:
    """Import it elsewhere: it puts a link named `resources` into the working folder."""
    here = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        import pufferlib.emulation
        import pufferlib.vector

        os.chdir(here)
    return pufferlib
