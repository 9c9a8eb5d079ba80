"""The same work in a process for each core, with nothing between them: the sum of their rates is the limit."""

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

from mpi_rollout.bench.compare.setups import Setup
from mpi_rollout.bench.compare.turns import Stepper, Turn, take_turn
from mpi_rollout.core.partition import Partition

MakeStepper = Callable[[Setup, range], Stepper]  # Of the envs with these indices.


class OnAllCores:
    """Steppers in a process for each core, at the same time."""

    def __init__(self, setup: Setup, make: MakeStepper):
        context = multiprocessing.get_context("fork")
        self._workers: list[tuple[Connection, ForkProcess]] = []
        partition = Partition(setup.num_envs, setup.num_cores)
        for rank in range(setup.num_cores):
            ours, theirs = context.Pipe()
            arguments = (make, setup, partition.envs_of(rank), theirs)
            process = context.Process(target=self._work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append((ours, process))
        for ours, _ in self._workers:
            ours.recv()

    @staticmethod
    def _work(make: MakeStepper, setup: Setup, mine: range, connection: Connection) -> None:
        stepper = make(setup, mine)
        connection.send("ready")
        with suppress(EOFError):
            while window_s := connection.recv():
                connection.send(take_turn(stepper, window_s))

    def take_turn(self, window_s: float) -> Turn:
        """Let all take theirs.  They end at different times, so the rates are summed, not the env steps."""
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
