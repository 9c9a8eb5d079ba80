"""The envs of a loop, as the orders of one exchange need them: they write into the rank's slot by themselves."""

from collections.abc import Callable
from typing import Any

from mpi_rollout.envs.inputs import Reset, Step
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.orders import Command
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.ranks.watchdog import Work


class LoopSlice(Slice):
    """The envs of a loop: they write into the slot's rows, or where nobody reads these, into arrays of their own."""

    _has_own_seeds = True

    def __init__(self, exchange: Exchange, envs: LoopVectorEnv, random: RandomPolicy | None, first_env: int = 0):
        super().__init__(exchange, envs, random, first_env)
        self._loop, self._first_seed = envs, self.env_indices.start
        envs.infos.keep_apart()
        envs.masks = self.masks
        self.step, self.faults = envs.step, envs.faults
        self.use_slot()

    def use_slot(self) -> None:
        exchange = self.exchange
        is_read = bool(exchange.layout.observations)
        self._loop.write_to(exchange.slot_rows if is_read else [self._loop.columns] * exchange.room)
        self.last_observations = self._loop.columns.observations

    def do(self, command: int, arguments: tuple[Any, ...], is_to_stop: Callable[[], bool]) -> None:
        if command != Command.STEP:
            self._loop.rewind()  # A reset may be of some envs.
        super().do(command, arguments, is_to_stop)

    def _put(self, outputs: Reset | Step, row: int, _names: tuple[str, ...]) -> None:
        self.last_observations = outputs[0]
        self.exchange.own_num_ended[row] = len(self._loop.ended)

    def _env_at_work(self) -> Work | None:
        work = self._loop.at_work()
        if work is None:
            return None
        (place, call, patience), step = work, self.num_steps
        return Work((id(self), call), lambda: f"step {step}: {self._loop.describe_work(place, call[0])}", patience)
