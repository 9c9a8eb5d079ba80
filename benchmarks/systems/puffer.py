"""PufferLib's vectorization of Gymnasium envs (3.0), which resets in the next step."""

import contextlib
from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from mpi_rollout.studies.compare import SEED, Setup
from systems.stepped import Stepper, actions_of, in_turn, make_env


@contextlib.contextmanager
def serial(setup: Setup, backend: str = "Serial", **more: Any) -> Iterator[Stepper]:
    """Make the loop."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):  # It puts a link into the working folder.
        import pufferlib.emulation
        import pufferlib.vector
    make = partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=partial(make_env, setup.env["env"]))
    envs = pufferlib.vector.make(make, backend=backend, num_envs=setup.num_envs, **more)

    def step(actions: Any) -> Any:
        _, _, terminations, truncations, _ = envs.step(actions)
        return terminations.copy(), truncations.copy()  # The next step writes there.

    with contextlib.closing(envs):
        yield in_turn(partial(envs.reset, SEED), step, actions_of(setup), True)


def workers(setup: Setup) -> Any:
    """Make several envs in each of as many processes as there are cores."""
    return serial(setup, "Multiprocessing", num_workers=setup.num_cores, overwork=True)
