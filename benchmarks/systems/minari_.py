"""Minari's DataCollector: one env whose episodes are recorded, where MINARI_DATASETS_PATH says."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from mpi_rollout.studies.compare.systems import Setup
from mpi_rollout.studies.compare.turn import Stepper, Turn, drawn_actions, of_loop


class Recording:
    """A turn that ends with a reset, which stores the running episode, as a run of this program ends with a commit."""

    def __init__(self, stepper: Stepper):
        self._stepper = stepper

    def take_turn(self, window_s: float) -> Turn:
        turn, start = self._stepper.take_turn(window_s), perf_counter()
        self._stepper.reset()
        return turn._replace(seconds=turn.seconds + perf_counter() - start)


@contextmanager
def collector(setup: Setup) -> Iterator[Recording]:
    """Make the collector."""
    from minari import DataCollector

    env = DataCollector(setup.make(0))
    yield Recording(of_loop([env], [[action] for action in drawn_actions(env.action_space)]))
