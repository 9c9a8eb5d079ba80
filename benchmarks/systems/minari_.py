"""Minari's DataCollector: one env whose episodes are recorded, where MINARI_DATASETS_PATH says."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from time import perf_counter

from mpi_rollout.studies.compare import SEED, Rate, Setup, drawn_actions
from systems.stepped import Stepper


@contextmanager
def collector(setup: Setup) -> Iterator[Rate]:
    """Make the collector."""
    from minari import DataCollector

    env = DataCollector(setup.maker()(0))
    actions = cycle(drawn_actions(env.action_space))

    def sweep() -> int:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()
        return 1

    stepper = Stepper(lambda: env.reset(seed=SEED), sweep)

    def measure(seconds: float) -> float:
        """End with a reset, which stores the running episode, as a run of this program ends with a commit."""
        env_steps, elapsed = stepper.step_for(seconds)
        start = perf_counter()
        env.reset()
        return env_steps / (elapsed + perf_counter() - start)

    yield measure
